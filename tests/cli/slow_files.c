/* Preloaded into a process, this library delays its first call of one function on a file of a
 * checkpoint, as a slow disk or file server does: YOKE_SLOW_CALL is fdatasync, fsync, or pread for
 * a read behind the header of a file; YOKE_SLOW_SECONDS says by how much. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static void delay_once(const char* call, int fd) {
  static atomic_flag done = ATOMIC_FLAG_INIT;
  const char* slow = getenv("YOKE_SLOW_CALL");
  if (slow == NULL || strcmp(slow, call) != 0) return;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  if (size <= 0) return;
  path[size] = '\0';
  if (strstr(path, "/checkpoints/") == NULL || strstr(path, ".safetensors") == NULL) return;
  if (atomic_flag_test_and_set(&done)) return;
  fprintf(stderr, "%s is slow\n", call);
  sleep((unsigned)atoi(getenv("YOKE_SLOW_SECONDS")));
}

int fdatasync(int fd) {
  delay_once("fdatasync", fd);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}

int fsync(int fd) {
  delay_once("fsync", fd);
  return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

static ssize_t delayed_pread(const char* name, int fd, void* buffer, size_t size, off_t offset) {
  if (offset > 8) delay_once("pread", fd); /* the header begins at byte 8 */
  return ((ssize_t(*)(int, void*, size_t, off_t))dlsym(RTLD_NEXT, name))(fd, buffer, size, offset);
}

ssize_t pread(int fd, void* buffer, size_t size, off_t offset) {
  return delayed_pread("pread", fd, buffer, size, offset);
}

ssize_t pread64(int fd, void* buffer, size_t size, off64_t offset) {
  return delayed_pread("pread64", fd, buffer, size, offset);
}
