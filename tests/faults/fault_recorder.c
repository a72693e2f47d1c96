/* A library for LD_PRELOAD that stands between a program and its files. It numbers every file
 * operation below one folder, over all processes of a run, and
 *
 *   records each of them with its data, so that crash_states.py can rebuild what a power cut may leave,
 *   kills the process before operation number N, or
 *   lets operation number N fail with a chosen error.
 *
 * Variables of the environment:
 *   YOKE_FAULTS_ROOT    folder whose operations count, as an absolute path without links
 *   YOKE_FAULTS_SHARED  a file of 4096 zero bytes: the counter and a lock that all processes share
 *   YOKE_FAULTS_RECORD  file to which records are appended; unset = no recording
 *   YOKE_FAULTS_KILL    N: SIGKILL this process before operation N
 *   YOKE_FAULTS_FAIL    N:ERRNO: operation N does nothing and fails with this error number
 *   YOKE_FAULTS_ONLY    a set of letters, see `Kind`: only these operations are numbered; unset = all
 *
 * An operation and its record are made under the shared lock, so the order of the records is the
 * order of the operations. Data that the C library writes from its own buffers (fwrite to a log) is
 * not seen: the replay treats it as never written, and nothing of it is checked. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

/* The letters of records; crash_states.py has the same list. */
enum Kind {
  kOpen = 'o',     /* an existing file or folder, to read or write */
  kCreate = 'c',   /* a new file: inode, path */
  kMkdir = 'm',    /* a new folder: inode, path */
  kRename = 'r',   /* path, second path */
  kExchange = 'x', /* path, second path */
  kUnlink = 'u',   /* path; a file or an empty folder */
  kWrite = 'w',    /* inode, offset, data */
  kTruncate = 't', /* inode, size in the field offset */
  kAllocate = 'a', /* inode, size in the field offset: a smaller file grows to it */
  kSync = 's',     /* inode of a file or a folder */
  kRead = 'g',     /* inode */
  kLock = 'l',     /* inode */
  kClose = 'e',    /* inode */
  kSay = 'p'       /* data: what the program printed; not numbered */
};

struct Record {
  uint32_t kind;
  int32_t pid;
  uint64_t number; /* of the operation, from 1; 0 = not numbered */
  uint64_t inode;
  uint64_t offset;
  uint32_t path_size, second_size, data_size, result; /* result: error number, 0 = done */
};

struct Shared {
  pthread_mutex_t lock; /* robust, shared between processes */
  uint32_t ready;       /* 0 = nobody began, 1 = in the making, 2 = ready */
  uint64_t count;
};

static struct {
  char root[PATH_MAX];
  size_t root_size;
  struct Shared* shared;
  int record_fd;
  uint64_t kill_at, fail_at;
  int fail_with;
  const char* only;
} g = {.record_fd = -1};

#define REAL(name) ((__typeof__(&name))real(#name))

static void* real(const char* name) {
  void* f = dlsym(RTLD_NEXT, name);
  if (f == NULL) abort();
  return f;
}

/* Runs once a process, before main and before any library of the program opens files. */
__attribute__((constructor)) static void set_up(void) {
  const char* root = getenv("YOKE_FAULTS_ROOT");
  const char* shared = getenv("YOKE_FAULTS_SHARED");
  const char* record = getenv("YOKE_FAULTS_RECORD");
  const char* kill_at = getenv("YOKE_FAULTS_KILL");
  const char* fail = getenv("YOKE_FAULTS_FAIL");
  int fd;
  if (root == NULL || shared == NULL || strlen(root) >= sizeof g.root) return;
  fd = REAL(open)(shared, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  g.shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  REAL(close)(fd);
  if (g.shared == MAP_FAILED) abort();
  if (__sync_bool_compare_and_swap(&g.shared->ready, 0, 1)) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&g.shared->lock, &attributes);
    __sync_synchronize();
    g.shared->ready = 2;
  }
  while (*(volatile uint32_t*)&g.shared->ready != 2) usleep(100);
  if (record != NULL) g.record_fd = REAL(open)(record, O_WRONLY | O_APPEND | O_CLOEXEC);
  if (kill_at != NULL) g.kill_at = strtoull(kill_at, NULL, 10);
  if (fail != NULL) {
    char* end;
    g.fail_at = strtoull(fail, &end, 10);
    g.fail_with = *end == ':' ? atoi(end + 1) : EIO;
  }
  g.only = getenv("YOKE_FAULTS_ONLY");
  strcpy(g.root, root);
  g.root_size = strlen(root);
}

static void lock(void) {
  if (pthread_mutex_lock(&g.shared->lock) == EOWNERDEAD) pthread_mutex_consistent(&g.shared->lock);
}

static void unlock(void) {
  pthread_mutex_unlock(&g.shared->lock);
}

/* ---- Which paths and descriptors count ---- */

static int below_root(const char* path) {
  return g.root_size > 0 && strncmp(path, g.root, g.root_size) == 0 &&
         (path[g.root_size] == '/' || path[g.root_size] == '\0');
}

static const char* path_of_fd(int fd, char* out) {
  char link[48];
  ssize_t n;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  n = readlink(link, out, PATH_MAX - 1);
  out[n < 0 ? 0 : n] = '\0';
  return out;
}

/* Writes the absolute path into `out`, without "." and with no "//" or trailing slash; "" if it
 * does not lie below the root. ".." is not resolved: the program under test does not use it. */
static const char* absolute(int folder, const char* path, char* out) {
  char base[PATH_MAX] = "";
  char joined[2 * PATH_MAX];
  char *to = out, *end = out + PATH_MAX - 1;
  const char* p = joined;
  out[0] = '\0';
  if (g.root_size == 0 || path == NULL) return out;
  if (path[0] != '/') {
    if (folder == AT_FDCWD) {
      if (getcwd(base, sizeof base) == NULL) return out;
    } else {
      path_of_fd(folder, base);
    }
  }
  snprintf(joined, sizeof joined, "%s/%s", base, path);
  while (*p != '\0' && to < end) {
    if (p[0] == '/' && (p[1] == '/' || p[1] == '\0')) {
      ++p;
    } else if (p[0] == '/' && p[1] == '.' && (p[2] == '/' || p[2] == '\0')) {
      p += 2;
    } else {
      *to++ = *p++;
    }
  }
  *to = '\0';
  if (!below_root(out)) out[0] = '\0';
  return out;
}

/* Inode of an open file below the root, else 0. Pipes, sockets and files elsewhere do not count. */
static uint64_t tracked(int fd) {
  struct stat status;
  char path[PATH_MAX];
  if (g.root_size == 0 || fd < 0 || fd == g.record_fd) return 0;
  if (fstat(fd, &status) != 0 || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) return 0;
  return below_root(path_of_fd(fd, path)) ? (uint64_t)status.st_ino : 0;
}

static uint64_t inode_of(const char* path) {
  struct stat status;
  return lstat(path, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* ---- Numbers, faults and records ---- */

/* Takes the lock and a number. Returns 0 if the operation may happen, else the error it must fail
 * with. May not return at all. */
static int enter(enum Kind kind, uint64_t* number) {
  lock();
  *number = 0;
  if (g.only == NULL || strchr(g.only, (int)kind) != NULL) *number = ++g.shared->count;
  if (*number != 0 && *number == g.kill_at) {
    unlock();
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  return *number != 0 && *number == g.fail_at ? g.fail_with : 0;
}

struct Details {
  uint64_t inode, offset;
  const char *path, *second;
  const void* data;
  size_t data_size;
};

/* Writes the record, gives the lock back and restores errno. */
static void leave(enum Kind kind, uint64_t number, int error, struct Details d) {
  if (g.record_fd >= 0) {
    struct Record r;
    struct iovec parts[4];
    memset(&r, 0, sizeof r);
    r.kind = (uint32_t)kind;
    r.pid = getpid();
    r.number = number;
    r.inode = d.inode;
    r.offset = d.offset;
    r.path_size = d.path != NULL ? (uint32_t)strlen(d.path) : 0;
    r.second_size = d.second != NULL ? (uint32_t)strlen(d.second) : 0;
    r.data_size = error == 0 ? (uint32_t)d.data_size : 0;
    r.result = (uint32_t)error;
    parts[0] = (struct iovec){&r, sizeof r};
    parts[1] = (struct iovec){(void*)(uintptr_t)d.path, r.path_size};
    parts[2] = (struct iovec){(void*)(uintptr_t)d.second, r.second_size};
    parts[3] = (struct iovec){(void*)(uintptr_t)d.data, r.data_size};
    if (syscall(SYS_writev, g.record_fd, parts, 4) < 0) abort();
  }
  unlock();
  errno = error;
}

/* Runs `call`, an expression that sets errno if it returns a negative value or NULL, as operation
 * `kind`; `failed` is what it returns on failure. The fields of Details are evaluated afterwards. */
#define OPERATION(type, kind, failed, call, ...)                 \
  do {                                                           \
    uint64_t number_;                                            \
    const int fault_ = enter(kind, &number_);                    \
    const int before_ = errno;                                   \
    type result_ = failed;                                       \
    int error_ = fault_;                                         \
    if (fault_ == 0) {                                           \
      result_ = (call);                                          \
      error_ = result_ == (type)(failed) ? errno : 0;            \
    }                                                            \
    leave(kind, number_, error_, (struct Details){__VA_ARGS__}); \
    if (error_ == 0) errno = before_;                            \
    return result_;                                              \
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
            .inode = inode_of(path),
            .path = path);
}

static int open_any(int folder, const char* path, int flags, mode_t mode) {
  char whole[PATH_MAX];
  if (absolute(folder, path, whole)[0] != '\0') return open_below(whole, flags, mode);
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

/* The file is opened under its number; what is written through its buffer is not seen. */
static FILE* fopen_any(FILE* (*next)(const char*, const char*),
                       const char* path,
                       const char* mode) {
  char whole[PATH_MAX];
  struct stat status;
  if (absolute(AT_FDCWD, path, whole)[0] == '\0') return next(path, mode);
  const enum Kind kind = mode[0] != 'r' && lstat(whole, &status) != 0 ? kCreate : kOpen;
  OPERATION(FILE*, kind, NULL, next(path, mode), .inode = inode_of(whole), .path = whole);
}
EXPORT FILE* fopen(const char* path, const char* mode) {
  return fopen_any(REAL(fopen), path, mode);
}
EXPORT FILE* fopen64(const char* path, const char* mode) {
  return fopen_any(REAL(fopen64), path, mode);
}

EXPORT int close(int fd) {
  const uint64_t inode = tracked(fd);
  if (inode == 0) return (int)syscall(SYS_close, fd);
  OPERATION(int, kClose, -1, (int)syscall(SYS_close, fd), .inode = inode);
}

/* ---- Contents ---- */

static ssize_t write_at(int fd, const void* data, size_t size, uint64_t offset) {
  const uint64_t inode = tracked(fd);
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
  const uint64_t inode = tracked(fd);
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

/* libstdc++'s streams write with this; the parts are joined to make one record. */
EXPORT ssize_t writev(int fd, const struct iovec* parts, int count) {
  char joined[1 << 16];
  size_t size = 0;
  int i;
  if (tracked(fd) == 0) return syscall(SYS_writev, fd, parts, count);
  for (i = 0; i < count; ++i) {
    if (size + parts[i].iov_len > sizeof joined) abort();
    memcpy(joined + size, parts[i].iov_base, parts[i].iov_len);
    size += parts[i].iov_len;
  }
  return write(fd, joined, size);
}

static ssize_t read_at(int fd, void* data, size_t size, off_t offset) {
  const uint64_t inode = tracked(fd);
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
  const uint64_t inode = tracked(fd);
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
  const uint64_t inode = tracked(fd);
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
  const uint64_t inode = tracked(fd);
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
  const uint64_t inode = tracked(fd);
  if (inode == 0) return (int)syscall(SYS_flock, fd, how);
  OPERATION(int, kLock, -1, (int)syscall(SYS_flock, fd, how), .inode = inode);
}

/* ---- Names ---- */

static int mkdir_any(int folder, const char* path, mode_t mode) {
  char whole[PATH_MAX];
  if (absolute(folder, path, whole)[0] == '\0')
    return (int)syscall(SYS_mkdirat, folder, path, mode);
  OPERATION(int,
            kMkdir,
            -1,
            (int)syscall(SYS_mkdirat, folder, path, mode),
            .inode = inode_of(whole),
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
  absolute(from_folder, from, whole);
  if (whole[0] == '\0' || absolute(to_folder, to, second)[0] == '\0')
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
  if (absolute(folder, path, whole)[0] == '\0')
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

/* "saved PATH" is the promise that a power cut must not break. Not numbered. */
static void note_print(const void* data, size_t size) {
  if (g.record_fd < 0 || memmem(data, size, "saved ", 6) == NULL) return;
  lock();
  const int before = errno;
  leave(kSay, 0, 0, (struct Details){.data = data, .data_size = size});
  errno = before;
}

EXPORT size_t fwrite(const void* data, size_t size, size_t count, FILE* to) {
  note_print(data, size * count);
  return REAL(fwrite)(data, size, count, to);
}
#undef fwrite_unlocked
EXPORT size_t fwrite_unlocked(const void* data, size_t size, size_t count, FILE* to) {
  note_print(data, size * count);
  return REAL(fwrite_unlocked)(data, size, count, to);
}
