// Empty: c10d includes this file by name and uses nothing of it. See README.md of this folder.
#pragma once
