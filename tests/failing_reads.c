/* Preloaded into a process: reads by offset fail or hang while a file says so.
 *
 * RADIOPLAT_TEST_FAULT names the file. "fail WORD": a read of a file whose path has WORD in it is EIO. "hang WORD": it
 * does not return until the file says something else. "part WORD": it finds the end of the file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ssize_t (*real)(int, void *, size_t, off64_t);

static int fault(int fd) { /* 0 none, 1 fail, 2 hang, 3 part */
  const char *name = getenv("RADIOPLAT_TEST_FAULT");
  char text[512], link[64], path[4096];
  if (!name) return 0;
  int file = open(name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  ssize_t got = read(file, text, sizeof text - 1);
  close(file);
  if (got < 6) return 0;
  text[got] = 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  if (!strstr(path, text + 5)) return 0;
  return !strncmp(text, "hang", 4) ? 2 : !strncmp(text, "part", 4) ? 3 : 1;
}

ssize_t pread64(int fd, void *data, size_t count, off64_t offset) {
  int what;
  if (!real) real = dlsym(RTLD_NEXT, "pread64");
  while ((what = fault(fd)) == 2) usleep(20000);
  if (what == 3) return 0;
  if (what) {
    errno = EIO;
    return -1;
  }
  return real(fd, data, count, offset);
}

ssize_t pread(int fd, void *data, size_t count, off_t offset) { return pread64(fd, data, count, offset); }
