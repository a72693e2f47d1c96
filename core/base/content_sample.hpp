// A short description of the contents of files, to find out whether two machines have the same
// ones.
#pragma once

#include <string>
#include <vector>

namespace yoke {

// Returns "1048576 bytes, sample 1a2b3c4d" for a file, and the same for all files of a folder. At
// most 4 MiB are read, spread over the files, which takes a millisecond. Two files of equal size
// whose samples agree may still differ elsewhere. Throws Error, or
// std::filesystem::filesystem_error, if a file cannot be read.
std::string content_sample(const std::string& path);
// Returns the same for a list of files. Of more than 32 files, the contents of 32 are sampled, but
// the sizes of all of them count.
std::string content_sample(const std::vector<std::string>& files);

}  // namespace yoke
