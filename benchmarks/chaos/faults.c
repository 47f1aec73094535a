/* Preloaded into a run: ends the process at a file operation, and moves its clock.
 *
 * CHAOS_SWITCH names a file with the fields of `struct plan`. Operations below the folder `prefix` that change what is
 * on disk are counted; the process is killed before number `kill_at`. The clock is `shift` nanoseconds ahead. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct plan {
  volatile int64_t kill_at; /* 0: never */
  volatile int64_t count;
  volatile int64_t shift;
  char prefix[232];
};

static struct plan *plan(void) {
  static struct plan *mapped;
  static char last[1024];
  const char *name = getenv("CHAOS_SWITCH");
  if (!name) return NULL;
  if (mapped && !strcmp(name, last)) return mapped;
  int file = open(name, O_RDWR | O_CLOEXEC);
  if (file < 0) return NULL;
  void *memory = mmap(NULL, sizeof(struct plan), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return NULL;
  snprintf(last, sizeof last, "%s", name);
  return mapped = memory;
}

static void count(const char *path) {
  struct plan *now = plan();
  if (!now || !now->prefix[0] || !path || strncmp(path, now->prefix, strlen(now->prefix))) return;
  if (__atomic_add_fetch(&now->count, 1, __ATOMIC_SEQ_CST) == now->kill_at) kill(getpid(), SIGKILL);
}

static void count_file(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return;
  path[length] = 0;
  count(path);
}

#define REAL(name, type, ...)                                                                                          \
  static type (*real)(__VA_ARGS__);                                                                                    \
  if (!real) real = dlsym(RTLD_NEXT, #name)

int rename(const char *a, const char *b) {
  REAL(rename, int, const char *, const char *);
  count(b);
  return real(a, b);
}
int renameat(int x, const char *a, int y, const char *b) {
  REAL(renameat, int, int, const char *, int, const char *);
  count(b);
  return real(x, a, y, b);
}
int unlink(const char *a) {
  REAL(unlink, int, const char *);
  count(a);
  return real(a);
}
int unlinkat(int x, const char *a, int flags) {
  REAL(unlinkat, int, int, const char *, int);
  if (a[0] == '/') count(a);
  else count_file(x); /* rmtree: by the folder */
  return real(x, a, flags);
}
int link(const char *a, const char *b) {
  REAL(link, int, const char *, const char *);
  count(b);
  return real(a, b);
}
int symlink(const char *a, const char *b) {
  REAL(symlink, int, const char *, const char *);
  count(b);
  return real(a, b);
}
int mkdir(const char *a, mode_t mode) {
  REAL(mkdir, int, const char *, mode_t);
  count(a);
  return real(a, mode);
}
int rmdir(const char *a) {
  REAL(rmdir, int, const char *);
  count(a);
  return real(a);
}
int fsync(int fd) {
  REAL(fsync, int, int);
  count_file(fd);
  return real(fd);
}

int clock_gettime(clockid_t which, struct timespec *now) {
  REAL(clock_gettime, int, clockid_t, struct timespec *);
  int result = real(which, now);
  struct plan *plans = which == CLOCK_REALTIME && !result ? plan() : NULL;
  if (plans && plans->shift) {
    int64_t nanoseconds = now->tv_nsec + plans->shift % 1000000000;
    now->tv_sec += plans->shift / 1000000000 + (nanoseconds < 0 ? -1 : nanoseconds / 1000000000);
    now->tv_nsec = nanoseconds < 0 ? nanoseconds + 1000000000 : nanoseconds % 1000000000;
  }
  return result;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec precise;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *into) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (into) *into = precise.tv_sec;
  return precise.tv_sec;
}
