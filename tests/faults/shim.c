/* An LD_PRELOAD library that counts the calls which change a folder, and interferes with one of them.
 *
 * What it does is told by a file that several processes share, named by GGFERRY_FAULTS: `struct orders` below, which
 * tests/faults/interference.py fills. A call counts while `armed` is set, when it changes something below `folder`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { CREATE = 1, WRITE = 2, SYNC = 4, RENAME = 8, LINK = 16, UNLINK = 32, MKDIR = 64, TRUNCATE = 128 };
enum action { COUNT_ONLY, KILL_BEFORE, KILL_AFTER, FAIL, SHORTEN };

struct orders {
    atomic_int armed;   /* whether calls count */
    atomic_int count;   /* calls so far */
    atomic_int done;    /* how often the action was carried out */
    int at;             /* the number of the call that is interfered with, from 1 */
    int action;
    int error;          /* errno of a FAIL */
    int sticky;         /* kinds for which every later call fails too, as on a full disk */
    int no_flags;       /* link(2) and the flags of renameat2(2) are unknown, as on some FUSE and NFS mounts */
    int counted;        /* kinds that count; 0 for all */
    char folder[512];
    char log[512];      /* where each call is written down; empty for nowhere */
};

static struct orders *orders;

/* Take orders from a file; a process that was forked for a command of its own calls it. NULL for none. */
void ggferry_take_orders(const char *path) {
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0) : -1;
    if (file < 0) return;
    void *shared = mmap(NULL, sizeof *orders, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) orders = shared;
    syscall(SYS_close, file);
}

__attribute__((constructor)) static void begin(void) { ggferry_take_orders(getenv("GGFERRY_FAULTS")); }

static int active(void) { return orders && atomic_load(&orders->armed); }

/* The absolute path of `path` seen from folder `at`; of the open file `at` where `path` is NULL. */
static const char *absolute(int at, const char *path, char *buffer, size_t room) {
    char link[64];
    ssize_t length;
    if (path && path[0] == '/') return path;
    if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
    length = readlink(link, buffer, room - 1);
    if (length < 0) return "";
    buffer[length] = 0;
    if (path) snprintf(buffer + length, room - (size_t)length, "/%s", path);
    return buffer;
}

static void note(int number, const char *name, const char *path) {
    char line[1400];
    int file, length;
    if (!orders->log[0]) return;
    length = snprintf(line, sizeof line, "%d %s %s\n", number, name, path);
    file = (int)syscall(SYS_openat, AT_FDCWD, orders->log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return;
    syscall(SYS_write, file, line, (size_t)length);
    syscall(SYS_close, file);
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Count a call, and return what is to happen to it. KILL_BEFORE does not return. */
static enum action counted(enum kind kind, const char *name, int at, const char *path) {
    char buffer[4600];
    const char *full;
    int number;
    if (!active()) return COUNT_ONLY;
    full = absolute(at, path, buffer, sizeof buffer);
    if (strncmp(full, orders->folder, strlen(orders->folder)) != 0) return COUNT_ONLY;
    if (orders->counted && !(orders->counted & kind)) return COUNT_ONLY;
    number = atomic_fetch_add(&orders->count, 1) + 1;
    note(number, name, full);
    if (number != orders->at && !(number > orders->at && orders->at > 0 && (orders->sticky & kind))) return COUNT_ONLY;
    if (orders->action == SHORTEN && kind != WRITE) return COUNT_ONLY;
    if (orders->action == FAIL && orders->sticky && !(orders->sticky & kind)) return COUNT_ONLY;
    atomic_fetch_add(&orders->done, 1);
    if (orders->action == KILL_BEFORE) die();
    if (orders->action == FAIL) errno = orders->error;
    return (enum action)orders->action;
}

#define NEXT(result, name, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define RUN(what, failed, call) \
    do { \
        enum action verdict = (what); \
        if (verdict == FAIL) return failed; \
        __typeof__(call) result = (call); \
        if (verdict == KILL_AFTER) die(); \
        return result; \
    } while (0)

#define MODE_OF(flags, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }
#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE_OF(flags, mode) NEXT(int, #name, const char *, int, ...); \
        if (!(flags & O_CREAT)) return real(path, flags, mode); \
        RUN(counted(CREATE, "create", AT_FDCWD, path), -1, real(path, flags, mode)); \
    }
#define OPENAT(name) \
    int name(int at, const char *path, int flags, ...) { \
        MODE_OF(flags, mode) NEXT(int, #name, int, const char *, int, ...); \
        if (!(flags & O_CREAT)) return real(at, path, flags, mode); \
        RUN(counted(CREATE, "create", at, path), -1, real(at, path, flags, mode)); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

static size_t cut(enum action todo, size_t size) { return todo == SHORTEN && size > 1 ? size / 2 : size; }

ssize_t write(int file, const void *data, size_t size) {
    NEXT(ssize_t, "write", int, const void *, size_t);
    enum action todo = counted(WRITE, "write", file, NULL);
    RUN(todo, -1, real(file, data, cut(todo, size)));
}
#define PWRITE(name, offset_type) \
    ssize_t name(int file, const void *data, size_t size, offset_type offset) { \
        NEXT(ssize_t, #name, int, const void *, size_t, offset_type); \
        enum action todo = counted(WRITE, "pwrite", file, NULL); \
        RUN(todo, -1, real(file, data, cut(todo, size), offset)); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t writev(int file, const struct iovec *parts, int count) {
    NEXT(ssize_t, "writev", int, const struct iovec *, int);
    enum action todo = counted(WRITE, "writev", file, NULL);
    if (todo == SHORTEN && count > 0) return write(file, parts[0].iov_base, parts[0].iov_len);
    RUN(todo, -1, real(file, parts, count));
}

#define SYNCING(name) \
    int name(int file) { \
        NEXT(int, #name, int); \
        RUN(counted(SYNC, #name, file, NULL), -1, real(file)); \
    }
SYNCING(fsync)
SYNCING(fdatasync)

int rename(const char *from, const char *to) {
    NEXT(int, "rename", const char *, const char *);
    RUN(counted(RENAME, "rename", AT_FDCWD, to), -1, real(from, to));
}
int renameat(int from_at, const char *from, int to_at, const char *to) {
    NEXT(int, "renameat", int, const char *, int, const char *);
    RUN(counted(RENAME, "rename", to_at, to), -1, real(from_at, from, to_at, to));
}
int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    NEXT(int, "renameat2", int, const char *, int, const char *, unsigned);
    if (active() && orders->no_flags && flags) { errno = EINVAL; return -1; }
    RUN(counted(RENAME, "renameat2", to_at, to), -1, real(from_at, from, to_at, to, flags));
}
int link(const char *from, const char *to) {
    NEXT(int, "link", const char *, const char *);
    if (active() && orders->no_flags) { errno = EPERM; return -1; }
    RUN(counted(LINK, "link", AT_FDCWD, to), -1, real(from, to));
}
int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    NEXT(int, "linkat", int, const char *, int, const char *, int);
    if (active() && orders->no_flags) { errno = EPERM; return -1; }
    RUN(counted(LINK, "link", to_at, to), -1, real(from_at, from, to_at, to, flags));
}
int unlink(const char *path) {
    NEXT(int, "unlink", const char *);
    RUN(counted(UNLINK, "unlink", AT_FDCWD, path), -1, real(path));
}
int unlinkat(int at, const char *path, int flags) {
    NEXT(int, "unlinkat", int, const char *, int);
    RUN(counted(UNLINK, "unlink", at, path), -1, real(at, path, flags));
}
int rmdir(const char *path) {
    NEXT(int, "rmdir", const char *);
    RUN(counted(UNLINK, "rmdir", AT_FDCWD, path), -1, real(path));
}
int mkdir(const char *path, mode_t mode) {
    NEXT(int, "mkdir", const char *, mode_t);
    RUN(counted(MKDIR, "mkdir", AT_FDCWD, path), -1, real(path, mode));
}
#define TRUNCATING(name, offset_type) \
    int name(int file, offset_type size) { \
        NEXT(int, #name, int, offset_type); \
        RUN(counted(TRUNCATE, "ftruncate", file, NULL), -1, real(file, size)); \
    }
TRUNCATING(ftruncate, off_t)
TRUNCATING(ftruncate64, off64_t)
