// A library for LD_PRELOAD that ignores TCP_USER_TIMEOUT, so that the kernel does not notice a cut
// connection before the program does. `node_faults.py prove` uses it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

int setsockopt(int socket, int level, int name, const void* value, socklen_t size) {
  if (level == IPPROTO_TCP && name == TCP_USER_TIMEOUT) return 0;
  int (*next)(int, int, int, const void*, socklen_t) = dlsym(RTLD_NEXT, "setsockopt");
  return next(socket, level, name, value, size);
}
