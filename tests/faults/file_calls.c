/* The functions of the C library that this library replaces. Each one finds out whether its file
 * is tracked, and passes the call on to the kernel. For a tracked file it calls recorder_enter
 * before and recorder_leave afterwards. See fault_recorder.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fault_recorder.h"

#define EXPORT __attribute__((visibility("default")))

/* Runs `call`, an expression that sets errno if it returns `failed`, as an operation of this kind.
 * The fields of Details are evaluated afterwards. */
#define OPERATION(type, kind, failed, call, ...)                          \
  do {                                                                    \
    uint64_t number_;                                                     \
    const int fault_ = recorder_enter(kind, &number_);                    \
    const int before_ = errno;                                            \
    type result_ = failed;                                                \
    int error_ = fault_;                                                  \
    if (fault_ == 0) {                                                    \
      result_ = (call);                                                   \
      error_ = result_ == (type)(failed) ? errno : 0;                     \
    }                                                                     \
    recorder_leave(kind, number_, error_, (struct Details){__VA_ARGS__}); \
    if (error_ == 0) errno = before_;                                     \
    return result_;                                                       \
  } while (0)

/* ---- Opening ---- */

static int open_below(const char* path, int flags, mode_t mode) {
  struct stat status;
  const int exists = lstat(path, &status) == 0;
  const int makes = (flags & O_CREAT) != 0 && !exists;
  const int cuts = (flags & O_TRUNC) != 0 && exists;
  const enum Kind kind = makes ? kCreate : cuts ? kTruncate : kOpen;
  OPERATION(int,
            kind,
            -1,
            (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode),
            .inode = recorder_inode_of(path),
            .path = path);
}

static int open_any(int folder, const char* path, int flags, mode_t mode) {
  char whole[PATH_MAX];
  if (recorder_absolute(folder, path, whole)[0] != '\0') return open_below(whole, flags, mode);
  return (int)syscall(SYS_openat, folder, path, flags, mode);
}

#define MODE_OF(last, flags)                      \
  mode_t mode = 0;                                \
  if (((flags) & (O_CREAT | __O_TMPFILE)) != 0) { \
    va_list more;                                 \
    va_start(more, last);                         \
    mode = va_arg(more, mode_t);                  \
    va_end(more);                                 \
  }

EXPORT int open(const char* path, int flags, ...) {
  MODE_OF(flags, flags)
  return open_any(AT_FDCWD, path, flags, mode);
}
EXPORT int open64(const char* path, int flags, ...) {
  MODE_OF(flags, flags)
  return open_any(AT_FDCWD, path, flags, mode);
}
EXPORT int openat(int folder, const char* path, int flags, ...) {
  MODE_OF(flags, flags)
  return open_any(folder, path, flags, mode);
}
EXPORT int openat64(int folder, const char* path, int flags, ...) {
  MODE_OF(flags, flags)
  return open_any(folder, path, flags, mode);
}

/* Only the opening is an operation; what is written through the buffer of the FILE is not. */
static FILE* fopen_any(FILE* (*next)(const char*, const char*),
                       const char* path,
                       const char* mode) {
  char whole[PATH_MAX];
  struct stat status;
  if (recorder_absolute(AT_FDCWD, path, whole)[0] == '\0') return next(path, mode);
  const enum Kind kind = mode[0] != 'r' && lstat(whole, &status) != 0 ? kCreate : kOpen;
  OPERATION(FILE*, kind, NULL, next(path, mode), .inode = recorder_inode_of(whole), .path = whole);
}
EXPORT FILE* fopen(const char* path, const char* mode) {
  return fopen_any(REAL(fopen), path, mode);
}
EXPORT FILE* fopen64(const char* path, const char* mode) {
  return fopen_any(REAL(fopen64), path, mode);
}

/* On Linux, a descriptor is closed even if close() reports an error. */
EXPORT int close(int fd) {
  const uint64_t inode = recorder_tracked(fd);
  uint64_t number;
  if (inode == 0) return (int)syscall(SYS_close, fd);
  const int before = errno, fault = recorder_enter(kClose, &number);
  const int error = syscall(SYS_close, fd) != 0 ? errno : fault;
  recorder_leave(kClose, number, error, (struct Details){.inode = inode});
  if (error == 0) errno = before;
  return error == 0 ? 0 : -1;
}

/* ---- Contents ---- */

static ssize_t write_at(int fd, const void* data, size_t size, uint64_t offset) {
  const uint64_t inode = recorder_tracked(fd);
  if (inode == 0) return syscall(SYS_pwrite64, fd, data, size, (off_t)offset);
  OPERATION(ssize_t,
            kWrite,
            -1,
            syscall(SYS_pwrite64, fd, data, size, (off_t)offset),
            .inode = inode,
            .offset = offset,
            .data = data,
            .data_size = (size_t)result_);
}
EXPORT ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  return write_at(fd, data, size, (uint64_t)offset);
}
EXPORT ssize_t pwrite64(int fd, const void* data, size_t size, off64_t offset) {
  return write_at(fd, data, size, (uint64_t)offset);
}

static uint64_t position(int fd) {
  const off_t at = lseek(fd, 0, fcntl(fd, F_GETFL) & O_APPEND ? SEEK_END : SEEK_CUR);
  return at < 0 ? 0 : (uint64_t)at;
}

EXPORT ssize_t write(int fd, const void* data, size_t size) {
  const uint64_t inode = recorder_tracked(fd);
  if (inode == 0) return syscall(SYS_write, fd, data, size);
  const uint64_t at = position(fd);
  OPERATION(ssize_t,
            kWrite,
            -1,
            syscall(SYS_write, fd, data, size),
            .inode = inode,
            .offset = at,
            .data = data,
            .data_size = (size_t)result_);
}

/* libstdc++'s streams write with this; the parts are joined into one record. */
EXPORT ssize_t writev(int fd, const struct iovec* parts, int count) {
  char joined[1 << 16];
  size_t size = 0;
  int i;
  if (recorder_tracked(fd) == 0) return syscall(SYS_writev, fd, parts, count);
  for (i = 0; i < count; ++i) {
    if (size + parts[i].iov_len > sizeof joined) abort();
    memcpy(joined + size, parts[i].iov_base, parts[i].iov_len);
    size += parts[i].iov_len;
  }
  return write(fd, joined, size);
}

static ssize_t read_at(int fd, void* data, size_t size, off_t offset) {
  const uint64_t inode = recorder_tracked(fd);
  if (inode == 0) return syscall(SYS_pread64, fd, data, size, offset);
  OPERATION(ssize_t, kRead, -1, syscall(SYS_pread64, fd, data, size, offset), .inode = inode);
}
EXPORT ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  return read_at(fd, data, size, offset);
}
EXPORT ssize_t pread64(int fd, void* data, size_t size, off64_t offset) {
  return read_at(fd, data, size, offset);
}

static int set_size(int fd, off_t size) {
  const uint64_t inode = recorder_tracked(fd);
  if (inode == 0) return (int)syscall(SYS_ftruncate, fd, size);
  OPERATION(int,
            kTruncate,
            -1,
            (int)syscall(SYS_ftruncate, fd, size),
            .inode = inode,
            .offset = (uint64_t)size);
}
EXPORT int ftruncate(int fd, off_t size) {
  return set_size(fd, size);
}
EXPORT int ftruncate64(int fd, off64_t size) {
  return set_size(fd, size);
}

static int allocate(int fd, int mode, off_t offset, off_t size) {
  const uint64_t inode = recorder_tracked(fd);
  if (inode == 0) return (int)syscall(SYS_fallocate, fd, mode, offset, size);
  OPERATION(int,
            kAllocate,
            -1,
            (int)syscall(SYS_fallocate, fd, mode, offset, size),
            .inode = inode,
            .offset = (uint64_t)(offset + size));
}
EXPORT int fallocate(int fd, int mode, off_t offset, off_t size) {
  return allocate(fd, mode, offset, size);
}
EXPORT int fallocate64(int fd, int mode, off64_t offset, off64_t size) {
  return allocate(fd, mode, offset, size);
}

static int sync_any(long call, int fd) {
  const uint64_t inode = recorder_tracked(fd);
  if (inode == 0) return (int)syscall(call, fd);
  /* The data need not reach a disk: the replay decides what a power cut leaves. */
  OPERATION(int, kSync, -1, 0, .inode = inode);
}
EXPORT int fsync(int fd) {
  return sync_any(SYS_fsync, fd);
}
EXPORT int fdatasync(int fd) {
  return sync_any(SYS_fdatasync, fd);
}

EXPORT int flock(int fd, int how) {
  const uint64_t inode = recorder_tracked(fd);
  if (inode == 0) return (int)syscall(SYS_flock, fd, how);
  OPERATION(int, kLock, -1, (int)syscall(SYS_flock, fd, how), .inode = inode);
}

/* ---- Names ---- */

static int mkdir_any(int folder, const char* path, mode_t mode) {
  char whole[PATH_MAX];
  if (recorder_absolute(folder, path, whole)[0] == '\0')
    return (int)syscall(SYS_mkdirat, folder, path, mode);
  OPERATION(int,
            kMkdir,
            -1,
            (int)syscall(SYS_mkdirat, folder, path, mode),
            .inode = recorder_inode_of(whole),
            .path = whole);
}
EXPORT int mkdir(const char* path, mode_t mode) {
  return mkdir_any(AT_FDCWD, path, mode);
}
EXPORT int mkdirat(int folder, const char* path, mode_t mode) {
  return mkdir_any(folder, path, mode);
}

static int rename_any(
    int from_folder, const char* from, int to_folder, const char* to, unsigned how) {
  char whole[PATH_MAX], second[PATH_MAX];
  recorder_absolute(from_folder, from, whole);
  if (whole[0] == '\0' || recorder_absolute(to_folder, to, second)[0] == '\0')
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, how);
  OPERATION(int,
            (how & RENAME_EXCHANGE) != 0 ? kExchange : kRename,
            -1,
            (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, how),
            .path = whole,
            .second = second);
}
EXPORT int rename(const char* from, const char* to) {
  return rename_any(AT_FDCWD, from, AT_FDCWD, to, 0);
}
EXPORT int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  return rename_any(from_folder, from, to_folder, to, 0);
}
EXPORT int renameat2(
    int from_folder, const char* from, int to_folder, const char* to, unsigned how) {
  return rename_any(from_folder, from, to_folder, to, how);
}

static int unlink_any(int folder, const char* path, int flags) {
  char whole[PATH_MAX];
  if (recorder_absolute(folder, path, whole)[0] == '\0')
    return (int)syscall(SYS_unlinkat, folder, path, flags);
  OPERATION(int, kUnlink, -1, (int)syscall(SYS_unlinkat, folder, path, flags), .path = whole);
}
EXPORT int unlink(const char* path) {
  return unlink_any(AT_FDCWD, path, 0);
}
EXPORT int unlinkat(int folder, const char* path, int flags) {
  return unlink_any(folder, path, flags);
}
EXPORT int rmdir(const char* path) {
  return unlink_any(AT_FDCWD, path, AT_REMOVEDIR);
}
EXPORT int remove(const char* path) {
  struct stat status;
  const int folder = lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
  return unlink_any(AT_FDCWD, path, folder ? AT_REMOVEDIR : 0);
}

/* ---- What the program prints ---- */

EXPORT size_t fwrite(const void* data, size_t size, size_t count, FILE* to) {
  recorder_note_print(data, size * count);
  return REAL(fwrite)(data, size, count, to);
}
#undef fwrite_unlocked
EXPORT size_t fwrite_unlocked(const void* data, size_t size, size_t count, FILE* to) {
  recorder_note_print(data, size * count);
  return REAL(fwrite_unlocked)(data, size, count, to);
}
