/* A library for LD_PRELOAD that stands between a program and its files. It numbers every file
 * operation below one folder, over all processes of a run, and
 *
 *   records each of them with its data, for crash_states.py to rebuild what a power cut may leave,
 *   kills the process before operation number N, or
 *   lets operation number N fail with a chosen error.
 *
 * Variables of the environment:
 *   YOKE_FAULTS_ROOT    folder whose operations count, as an absolute path without links
 *   YOKE_FAULTS_SHARED  a file of 4096 zero bytes: the counter and a lock that all processes share
 *   YOKE_FAULTS_RECORD  file to which records are appended; unset = no recording
 *   YOKE_FAULTS_KILL    N: SIGKILL this process before operation N
 *   YOKE_FAULTS_FAIL    N:ERRNO: operation N does nothing and fails with this error number
 *   YOKE_FAULTS_ONLY    a set of letters, see `Kind`: the operations that are numbered; unset = all
 *
 * An operation and its record are made under the shared lock, so the order of the records is the
 * order of the operations. Data that the C library writes from its own buffers (fwrite to a log) is
 * not seen: the replay treats it as never written, and nothing of it is checked.
 *
 * fault_recorder.c holds the set-up, the choice of the paths that count, the numbers and the
 * records. file_calls.c holds the functions of the C library that this library replaces. */
#ifndef YOKE_TESTS_FAULTS_FAULT_RECORDER_H_
#define YOKE_TESTS_FAULTS_FAULT_RECORDER_H_

#include <stddef.h>
#include <stdint.h>

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

/* The fields of a record that depend on the kind of the operation. Unused fields are 0. */
struct Details {
  uint64_t inode, offset;
  const char *path, *second;
  const void* data;
  size_t data_size;
};

/* The function of this name that the program would call without this library. The function must be
 * declared. */
#define REAL(name) ((__typeof__(&name))recorder_real(#name))
void* recorder_real(const char* name);

/* ---- Which paths and descriptors count ----
 *
 * None does until the constructor of the library has run, so calls before that are passed on. */

/* Writes the absolute path into `out`, an array of PATH_MAX bytes, without "." and with no "//" or
 * trailing slash; "" if it does not lie below the root. `folder`: descriptor of the folder that a
 * relative path starts from, or AT_FDCWD. ".." is not resolved: the program under test does not use
 * it. Returns `out`. */
const char* recorder_absolute(int folder, const char* path, char* out);

/* Returns the inode of an open file or folder below the root, else 0. Pipes, sockets and files
 * elsewhere do not count. */
uint64_t recorder_tracked(int fd);

/* Returns the inode that a path names, without following a link; 0 = there is none. */
uint64_t recorder_inode_of(const char* path);

/* ---- Numbers, faults and records ---- */

/* Takes the lock and a number. Returns 0 if the operation may happen, else the error it must fail
 * with. May not return at all. */
int recorder_enter(enum Kind kind, uint64_t* number);

/* Writes the record, releases the lock, and sets errno to `error`, the result of the operation. */
void recorder_leave(enum Kind kind, uint64_t number, int error, struct Details d);

/* Records what the program prints if it holds "saved PATH": the promise that a power cut must not
 * break. Takes no number, and keeps errno. */
void recorder_note_print(const void* data, size_t size);

#endif /* YOKE_TESTS_FAULTS_FAULT_RECORDER_H_ */
