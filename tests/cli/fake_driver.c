/* The functions of an NVIDIA driver that Yoke asks for its devices. Environment variables choose
 * what they report. */
#include <stdio.h>
#include <stdlib.h>

static int number(const char* variable) {
  const char* text = getenv(variable);
  return text == NULL ? 0 : atoi(text);
}

int cuInit(unsigned flags) {
  (void)flags;
  return number("FAKE_DRIVER_INIT");
}

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_DRIVER_VERSION");
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

int cuDeviceGetName(char* name, int length, int device) {
  snprintf(name, (size_t)length, "device %d of a test", device);
  return 0;
}

int cuGetErrorString(int code, const char** text) {
  static char buffer[40];
  snprintf(buffer, sizeof buffer, "text of error %d", code);
  *text = buffer;
  return 0;
}
