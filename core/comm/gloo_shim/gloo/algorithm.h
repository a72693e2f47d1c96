// Included by name only; see the README of this folder.
#pragma once
