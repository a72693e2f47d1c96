/* Sets the library up, decides which paths are tracked, and numbers and records the operations; see
 * fault_recorder.h. This file never calls a function that file_calls.c replaces, because the
 * recorder would then record itself. It calls the C library's function by REAL, or the kernel. */
#define _GNU_SOURCE
#include "fault_recorder.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* The head of a record; two paths and the data follow it. crash_states.py has the same layout. */
struct Record {
  uint32_t kind;
  int32_t pid;
  uint64_t number; /* number of the operation, from 1; 0 = not numbered */
  uint64_t inode;
  uint64_t offset;
  uint32_t path_size, second_size, data_size, result; /* result: error number, 0 = success */
};

struct Shared {
  pthread_mutex_t lock; /* robust, shared between processes */
  uint32_t ready;       /* 0 = not initialised, 1 = being initialised, 2 = ready */
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

/* ---- Set-up ---- */

void* recorder_real(const char* name) {
  void* f = dlsym(RTLD_NEXT, name);
  if (f == NULL) abort();
  return f;
}

/* Runs once per process, before main and before any library of the program opens files. */
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
  /* The size of the root is set last: while it is 0, no path is tracked and no call is numbered. */
  strcpy(g.root, root);
  g.root_size = strlen(root);
}

static void lock(void) {
  if (pthread_mutex_lock(&g.shared->lock) == EOWNERDEAD) pthread_mutex_consistent(&g.shared->lock);
}

static void unlock(void) {
  pthread_mutex_unlock(&g.shared->lock);
}

/* ---- Tracked paths and descriptors ---- */

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

const char* recorder_absolute(int folder, const char* path, char* out) {
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

uint64_t recorder_tracked(int fd) {
  struct stat status;
  char path[PATH_MAX];
  if (g.root_size == 0 || fd < 0 || fd == g.record_fd) return 0;
  if (fstat(fd, &status) != 0 || !(S_ISREG(status.st_mode) || S_ISDIR(status.st_mode))) return 0;
  return below_root(path_of_fd(fd, path)) ? (uint64_t)status.st_ino : 0;
}

uint64_t recorder_inode_of(const char* path) {
  struct stat status;
  return lstat(path, &status) == 0 ? (uint64_t)status.st_ino : 0;
}

/* ---- Numbers, faults and records ---- */

int recorder_enter(enum Kind kind, uint64_t* number) {
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

void recorder_leave(enum Kind kind, uint64_t number, int error, struct Details d) {
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

void recorder_note_print(const void* data, size_t size) {
  if (g.record_fd < 0 || memmem(data, size, "saved ", 6) == NULL) return;
  lock();
  const int before = errno;
  recorder_leave(kSay, 0, 0, (struct Details){.data = data, .data_size = size});
  errno = before;
}
