/* A library for LD_PRELOAD that intercepts the file operations of a program. It numbers every
 * operation below one folder, across all processes of a run, and
 *
 *   records it with its data, from which crash_states.py rebuilds what a power cut may leave,
 *   kills the process before operation number N, or
 *   lets operation number N fail with a chosen error.
 *
 * Variables of the environment:
 *   YOKE_FAULTS_ROOT    folder that is tracked, as an absolute path without links
 *   YOKE_FAULTS_SHARED  a file of 4096 zero bytes: the counter and a lock that all processes share
 *   YOKE_FAULTS_RECORD  file to which records are appended; unset = no recording
 *   YOKE_FAULTS_KILL    N: SIGKILL this process before operation N
 *   YOKE_FAULTS_FAIL    N:ERRNO: operation N does nothing and fails with this error number
 *   YOKE_FAULTS_ONLY    a set of letters, see `Kind`: the operations that are numbered; unset = all
 *
 * The shared lock is held while an operation is done and its record is written, so the records have
 * the order of the operations. Data that the C library writes from its own buffers (fwrite to a
 * log) is not recorded: the replay treats it as never written, and nothing checks it.
 *
 * fault_recorder.c sets the library up, decides which paths are tracked, and writes the records.
 * file_calls.c contains the functions of the C library that this library replaces. */
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
  kSay = 'p'       /* data: text that the program printed; not numbered */
};

/* The fields of a record that depend on the kind of the operation. Unused fields are 0. */
struct Details {
  uint64_t inode, offset;
  const char *path, *second;
  const void* data;
  size_t data_size;
};

/* The C library's function of this name, which the program would call without this library. It must
 * be declared. */
#define REAL(name) ((__typeof__(&name))recorder_real(#name))
void* recorder_real(const char* name);

/* ---- Tracked paths and descriptors ----
 *
 * Nothing is tracked until the constructor of the library has run: earlier calls go straight to the
 * C library. */

/* Writes the absolute path into `out`, an array of PATH_MAX bytes, without "." and with no "//" or
 * trailing slash; "" if it is not below the root. `folder`: descriptor of the folder that a
 * relative path starts from, or AT_FDCWD. ".." is not resolved: the program under test does not use
 * it. Returns `out`. */
const char* recorder_absolute(int folder, const char* path, char* out);

/* Returns the inode of an open file or folder below the root, else 0. Pipes, sockets and files
 * elsewhere give 0. */
uint64_t recorder_tracked(int fd);

/* Returns the inode that a path names, without following a link; 0 = there is none. */
uint64_t recorder_inode_of(const char* path);

/* ---- Numbers, faults and records ---- */

/* Takes the lock and assigns a number to the operation. Returns 0 if the operation may be done,
 * else the error with which it must fail. Does not return if the process is to be killed here. */
int recorder_enter(enum Kind kind, uint64_t* number);

/* Writes the record, releases the lock, and sets errno to `error`, the result of the operation. */
void recorder_leave(enum Kind kind, uint64_t number, int error, struct Details d);

/* Records what the program prints if it contains "saved PATH": a checkpoint that was reported as
 * saved must survive a power cut. The print is not numbered, and errno is unchanged. */
void recorder_note_print(const void* data, size_t size);

#endif /* YOKE_TESTS_FAULTS_FAULT_RECORDER_H_ */
