/* A disk with the timing of a disk: an nbdkit plugin over a raw, sparse file.
 *
 * drive.h computes the times, as nanoseconds of CLOCK_MONOTONIC. One thread advances the drive; requests
 * wait for that thread. If the host wakes the thread late, the drive still uses the computed end of each
 * request, so delays do not add up. The server counts the delay of each reply, and `stats` reports it.
 * The platters' angle depends on the host's clock and not on the server's start: the angles between drives
 * depend only on their seeds, in every run.
 *
 * The cache is only in this process's memory. A command can drop it, and it is lost when the process is
 * killed. Faults are commands, one line each, over the unix socket `control`; see
 * `command()`.
 *
 * speed=0: no request waits. While requests are in flight the clock jumps to the next event.
 *
 * log=FILE: a log of requests and computed times, for drive/tests/replay_drive.c. Lines:
 *   drive SIZE START NAME=VALUE ...                  its parameters
 *   NUMBER ARRIVAL read|write|flush FUA OFFSET LENGTH -> COMPLETION [failed]
 *   NUMBER TIME stall UNTIL
 *   NUMBER TIME lose -> BYTES
 * Times are nanoseconds. A line is written when the request ends; NUMBER is the order of arrival.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include "drive.h"

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL
#define SECTOR LAB_DRIVE_SECTOR
#define PAGE LAB_DRIVE_PAGE
#define FAULTS 64
#define FILES 64                /* open files: no more connections; QEMU has one, nbd-client one for each CPU */
#define LARGEST (4u << 20)      /* bytes of a request: the server holds so much for each that is in flight */
#define LATE_STEP 100000        /* width of a class of lateness: 0.1 ms */
#define LATE_CLASSES 2000

/* ---- parameters */

static struct lab_drive_parameters P;
static const char *file, *control, *log_file;
static bool waits = true;       /* false with speed=0 */

#define NUMBER(name) { #name, offsetof(struct lab_drive_parameters, name) }
static const struct { const char *name; size_t offset; } numbers[] = {
  NUMBER(kind), NUMBER(seed), NUMBER(overhead), NUMBER(link_rate), NUMBER(cache), NUMBER(revolution),
  NUMBER(seek_a), NUMBER(seek_b), NUMBER(seek_c), NUMBER(seek_e), NUMBER(seek_limit),
  NUMBER(write_settle), NUMBER(outer_rate), NUMBER(inner_rate), NUMBER(zones), NUMBER(read_ahead),
  NUMBER(queue_depth), NUMBER(ageing), NUMBER(read_latency), NUMBER(write_latency),
  NUMBER(flush_latency), NUMBER(channels), NUMBER(page), NUMBER(gc_bytes), NUMBER(gc_stall),
  NUMBER(link_command), NUMBER(lead), NUMBER(oldest_share), NUMBER(write_places), NUMBER(write_choice),
  NUMBER(wake_after), NUMBER(wake), NUMBER(seek_only),
};

static int64_t *parameter(unsigned i)
{
  return (int64_t *)((char *)&P + numbers[i].offset);
}

/* ---- state; `lock` guards all of it */

struct request {
  enum lab_drive_op op;
  bool fua, cached, done, failed;
  uint64_t number, arrival, offset, completion;
  uint32_t length;
  const unsigned char *data;    /* data of a write */
  pthread_cond_t wake;
};

struct fault {
  unsigned id;                  /* 0: free */
  enum { ERROR_READ = 1, ERROR_WRITE = 2, ROT = 4 } kind;
  uint64_t offset, length;
  int64_t left;                 /* remaining times; -1: always */
  uint8_t flip;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work;     /* on the monotonic clock, set up in get_ready */
static int fd = -1, listener = -1;
static FILE *log_to;
static uint64_t size, origin, virtual_now, numbered;
static uint64_t armed;          /* wake-up time of the timer's thread */
static struct lab_drive *drive;
static unsigned char *cache;    /* by slot */
static bool quitting;
static pthread_t timer_thread;

static struct fault faults[FAULTS];
static unsigned fault_id;

static struct {
  uint64_t in_flight, in_flight_peak, errors, rotten, completions, late_over_5ms;
  uint64_t late[LATE_CLASSES], late_max, late_sum;
} S;

/* ---- time */

static uint64_t now(void)
{
  struct timespec t;
  if (!waits)
    return virtual_now;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * LAB_SECOND + (uint64_t)t.tv_nsec;
}

/* The drive's next event may have changed: wakes the timer's thread if necessary. */
static void rearm(void)
{
  if (lab_drive_next(drive) < armed || !waits)
    pthread_cond_signal(&work);
}

static void *timer(void *unused)
{
  (void)unused;
  pthread_mutex_lock(&lock);
  while (!quitting) {
    if (!waits && S.in_flight && lab_drive_next(drive) != LAB_NEVER)
      virtual_now = lab_most(virtual_now, lab_drive_next(drive));
    lab_drive_advance(drive, now());
    armed = lab_drive_next(drive);
    if (!waits) {
      if (!S.in_flight || armed == LAB_NEVER)
        pthread_cond_wait(&work, &lock);
    } else if (armed == LAB_NEVER) {
      pthread_cond_wait(&work, &lock);
    } else if (armed > now()) {
      struct timespec until = { (time_t)(armed / LAB_SECOND), (long)(armed % LAB_SECOND) };
      pthread_cond_timedwait(&work, &lock, &until);
    }
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* ---- faults */

static bool overlaps(const struct fault *f, uint64_t offset, uint64_t length)
{
  return f->id && offset < f->offset + f->length && f->offset < offset + length;
}

static int fault_of(int kind, uint64_t offset, uint64_t length)
{
  for (struct fault *f = faults; f < faults + FAULTS; f++)
    if (f->kind & kind && overlaps(f, offset, length) && f->left) {
      if (f->left > 0 && --f->left == 0)
        f->id = 0;
      S.errors++;
      return EIO;
    }
  return 0;
}

/* ---- the cache and the medium */

static int full_pread(void *buffer, uint64_t length, uint64_t offset)
{
  char *p = buffer;
  while (length) {
    ssize_t n = pread(fd, p, length, (off_t)offset);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return n < 0 ? errno : EIO;
    p += n, offset += (uint64_t)n, length -= (uint64_t)n;
  }
  return 0;
}

static int full_pwrite(const void *buffer, uint64_t length, uint64_t offset)
{
  const char *p = buffer;
  while (length) {
    ssize_t n = pwrite(fd, p, length, (off_t)offset);
    if (n < 0 && errno == EINTR)
      continue;
    if (n <= 0)
      return n < 0 ? errno : EIO;
    p += n, offset += (uint64_t)n, length -= (uint64_t)n;
  }
  return 0;
}

static void overlay(uint64_t page, bool old, unsigned char *into, uint64_t offset, uint64_t length)
{
  u8 sectors;
  uint32_t slot = lab_drive_slot(drive, page, old, &sectors);
  for (unsigned s = 0; s < PAGE / SECTOR; s++) {
    uint64_t where = page * PAGE + s * SECTOR;
    if (sectors & 1 << s && where >= offset && where < offset + length)
      memcpy(into + (where - offset), cache + (uint64_t)slot * PAGE + s * SECTOR, SECTOR);
  }
}

/* Reads data as a request sees them: the medium with its corruption, and newer data from the cache. */
static int read_data(void *into, uint64_t length, uint64_t offset)
{
  int error = full_pread(into, length, offset);
  for (struct fault *f = faults; f < faults + FAULTS && !error; f++)
    if (f->kind == ROT && overlaps(f, offset, length)) {
      uint64_t from = f->offset > offset ? f->offset : offset;
      uint64_t to = f->offset + f->length < offset + length ? f->offset + f->length : offset + length;
      for (uint64_t i = from; i < to; i++)
        ((unsigned char *)into)[i - offset] ^= f->flip;
      S.rotten++;
    }
  for (uint64_t page = offset / PAGE; page * PAGE < offset + length; page++) {
    overlay(page, true, into, offset, length);
    overlay(page, false, into, offset, length);
  }
  return error;
}

static void sectors_to_medium(const void *data, uint64_t length, uint64_t offset)
{
  int error = full_pwrite(data, length, offset);
  if (error)
    nbdkit_error("the disk's file cannot be written: %s", strerror(error));
}

/* ---- the drive's callbacks */

static void dirty(struct lab_drive *d, void *tag, u64 page, u8 sectors, u8 before, u32 slot)
{
  struct request *r = tag;
  (void)d, (void)before;
  r->cached = true;
  for (unsigned s = 0; s < PAGE / SECTOR; s++)
    if (sectors & 1 << s)
      memcpy(cache + (uint64_t)slot * PAGE + s * SECTOR, r->data + (page * PAGE + s * SECTOR - r->offset), SECTOR);
}

static void clean(struct lab_drive *d, u64 page, u8 sectors, u32 slot)
{
  (void)d;
  for (unsigned s = 0, end; s < PAGE / SECTOR; s = end) {
    for (end = s + 1; sectors & 1 << s && end < PAGE / SECTOR && sectors & 1 << end; end++)
      ;
    if (sectors & 1 << s)
      sectors_to_medium(cache + (uint64_t)slot * PAGE + s * SECTOR, (end - s) * SECTOR,
                        page * PAGE + s * SECTOR);
  }
}

static void done(struct lab_drive *d, void *tag, u64 when, bool failed)
{
  static const char *const words[] = { "read", "write", "flush" };
  struct request *r = tag;
  (void)d;
  if (r->op == LAB_DRIVE_WRITE && !r->cached)
    sectors_to_medium(r->data, r->length, r->offset);
  r->completion = when;
  r->failed = failed;
  r->done = true;
  S.in_flight--;
  if (log_to)
    fprintf(log_to, "%" PRIu64 " %" PRIu64 " %s %d %" PRIu64 " %" PRIu32 " -> %" PRIu64 "%s\n", r->number,
            r->arrival, words[r->op], r->fua, r->offset, r->length, when, failed ? " failed" : "");
  pthread_cond_signal(&r->wake);
}

static const struct lab_drive_ops operations = { .done = done, .dirty = dirty, .clean = clean };

/* ---- requests. Each function is called and returns with the lock. */

static int perform(enum lab_drive_op op, const void *data, void *into, uint32_t length, uint64_t offset, bool fua)
{
  struct request r = { .op = op, .fua = fua, .offset = offset, .length = length, .data = data,
                       .number = numbered++, .arrival = now() };
  if (!lab_drive_submit(drive, &r, op, fua, offset, length, r.arrival))
    return EBUSY;
  if (++S.in_flight > S.in_flight_peak)
    S.in_flight_peak = S.in_flight;
  pthread_cond_init(&r.wake, NULL);
  rearm();
  while (!r.done)
    pthread_cond_wait(&r.wake, &lock);
  pthread_cond_destroy(&r.wake);
  uint64_t late = waits ? now() - r.completion : 0;
  S.late[late / LATE_STEP < LATE_CLASSES ? late / LATE_STEP : LATE_CLASSES - 1]++;
  S.completions++;
  S.late_over_5ms += late > 5000000;
  S.late_max = lab_most(S.late_max, late);
  S.late_sum += late;
  return r.failed ? EIO : into ? read_data(into, length, offset) : 0;
}

/* ---- nbdkit's callbacks */

static int answer(int error)
{
  pthread_mutex_unlock(&lock);
  if (!error)
    return 0;
  nbdkit_set_error(error);
  return -1;
}

static bool out_of_step(uint32_t length, uint64_t offset)
{
  return length % SECTOR || offset % SECTOR;
}

static int disk_pread(void *handle, void *into, uint32_t length, uint64_t offset, uint32_t flags)
{
  (void)handle, (void)flags;
  pthread_mutex_lock(&lock);
  if (length == 0 || out_of_step(length, offset))
    return answer(length ? EINVAL : 0);
  int error = perform(LAB_DRIVE_READ, NULL, into, length, offset, false);
  int wrong = fault_of(ERROR_READ, offset, length);
  return answer(wrong ? wrong : error);
}

static int disk_pwrite(void *handle, const void *data, uint32_t length, uint64_t offset, uint32_t flags)
{
  (void)handle;
  pthread_mutex_lock(&lock);
  if (length == 0 || out_of_step(length, offset))
    return answer(length ? EINVAL : 0);
  int error = fault_of(ERROR_WRITE, offset, length);
  return answer(error ? error : perform(LAB_DRIVE_WRITE, data, NULL, length, offset, flags & NBDKIT_FLAG_FUA));
}

static int disk_flush(void *handle, uint32_t flags)
{
  (void)handle, (void)flags;
  pthread_mutex_lock(&lock);
  return answer(perform(LAB_DRIVE_FLUSH, NULL, NULL, 0, 0, false));
}

static volatile sig_atomic_t ended;

/* Anybody who reaches the port can connect. nbdkit without files left logs that without end. */
static int disk_preconnect(int readonly)
{
  int files = 0;
  DIR *directory = opendir("/proc/self/fd");
  (void)readonly;
  if (!directory)
    return -1;
  if (ended) { /* accepted after end_connections has passed its descriptor */
    closedir(directory);
    return -1;
  }
  while (readdir(directory))
    files++;
  closedir(directory);
  return files <= FILES ? 0 : -1;
}

static void *disk_open(int readonly)
{
  (void)readonly;
  return &size;
}

static int64_t disk_get_size(void *handle)
{
  (void)handle;
  return (int64_t)size;
}

static int disk_is_rotational(void *handle)
{
  (void)handle;
  return P.kind == LAB_DRIVE_HDD;
}

static int disk_yes(void *handle)
{
  (void)handle;
  return 1;
}

static int disk_can_fua(void *handle)
{
  (void)handle;
  return NBDKIT_FUA_NATIVE;
}

static int disk_block_size(void *handle, uint32_t *minimum, uint32_t *preferred, uint32_t *maximum)
{
  (void)handle;
  *minimum = SECTOR;
  *preferred = PAGE;
  *maximum = LARGEST;
  return 0;
}

/* ---- the control socket: a line in, a line out that begins with "ok" or "error" */

static double late_share(double share)
{
  uint64_t wanted = (uint64_t)((double)S.completions * share), seen = 0;
  for (unsigned class = 0; class < LATE_CLASSES; class++)
    if ((seen += S.late[class]) > wanted)
      return class * LATE_STEP * 1e-9;
  return 0;
}

static void statistics(FILE *out)
{
  const struct lab_drive_statistics *D = &drive->statistics;
  const struct { const char *name; uint64_t value; } counts[] = {
    { "reads", D->reads }, { "writes", D->writes }, { "flushes", D->flushes },
    { "read_bytes", D->read_bytes }, { "written_bytes", D->written_bytes },
    { "cache_hits", D->cache_hits }, { "segment_hits", D->segment_hits },
    { "media_reads", D->media_reads }, { "media_writes", D->media_writes },
    { "destages", D->destages }, { "skips", D->skips }, { "in_flight", S.in_flight },
    { "in_flight_peak", S.in_flight_peak }, { "queue_peak", D->queue_peak },
    { "dirty_bytes", lab_drive_dirty(drive) }, { "errors", S.errors }, { "rotten", S.rotten },
    { "losses", D->losses }, { "lost_bytes", D->lost_bytes }, { "collections", D->collections },
    { "completions", S.completions }, { "late_over_5ms", S.late_over_5ms },
  };
  fprintf(out, "ok {\"model\": \"%s\"", P.kind == LAB_DRIVE_SSD ? "ssd" : "hdd");
  for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++)
    fprintf(out, ", \"%s\": %" PRIu64, counts[i].name, counts[i].value);
  fprintf(out, ", \"seconds\": %.9f, \"busy_seconds\": %.6f", (double)(now() - origin) * 1e-9,
          (double)D->busy * 1e-9);
  fprintf(out, ", \"late_mean\": %.6f, \"late_median\": %.4f, \"late_99\": %.4f, \"late_max\": %.6f}\n",
          S.completions ? (double)S.late_sum * 1e-9 / (double)S.completions : 0, late_share(0.5),
          late_share(0.99), (double)S.late_max * 1e-9);
}

static struct fault *free_fault(FILE *out)
{
  for (struct fault *f = faults; f < faults + FAULTS; f++)
    if (!f->id)
      return f;
  fprintf(out, "error there are %d faults already: clear some\n", FAULTS);
  return NULL;
}

static int rot_medium(uint64_t offset, uint64_t length, uint8_t flip)
{
  unsigned char bytes[PAGE];
  int error = 0;
  for (uint64_t where = offset, n; where < offset + length && !error; where += n) {
    n = offset + length - where < PAGE ? offset + length - where : PAGE;
    if ((error = full_pread(bytes, n, where)))
      break;
    for (uint64_t i = 0; i < n; i++)
      bytes[i] ^= flip;
    error = full_pwrite(bytes, n, where);
  }
  return error;
}

static void stall(uint64_t until)
{
  uint64_t t = now();
  lab_drive_stall(drive, until, t);
  if (log_to)
    fprintf(log_to, "%" PRIu64 " %" PRIu64 " stall %" PRIu64 "\n", numbered++, t, until);
  rearm();
}

static uint64_t lose(void)
{
  uint64_t t = now(), bytes = lab_drive_lose(drive, t);
  if (log_to)
    fprintf(log_to, "%" PRIu64 " %" PRIu64 " lose -> %" PRIu64 "\n", numbered++, t, bytes);
  rearm();
  return bytes;
}

/* Commands; offsets and lengths are bytes. Called with the lock.
 *   stats                                   ok and the counters as JSON
 *   reset                                   counters to 0
 *   error read|write OFFSET LENGTH [TIMES]  EIO for requests that touch the range; ok ID
 *   rot OFFSET LENGTH [FLIP]                changes the medium's bytes once; a write restores them; ok
 *   misread OFFSET LENGTH [FLIP]            reads return changed bytes until the fault is cleared; ok ID
 *   clear [ID]                              removes that fault, or all and a stall
 *   stall SECONDS|release                   completes no request for that long, or until `release`
 *   release                                 ends the stall
 *   lose                                    drops the volatile cache; ok BYTES
 */
static void command(char *line, FILE *out)
{
  char word[16] = "", what[16] = "";
  uint64_t offset = 0, length = 0;
  long long extra = 0;
  int given = sscanf(line, "%15s", word);
  if (given == 1 && !strcmp(word, "stats"))
    statistics(out);
  else if (given == 1 && !strcmp(word, "reset")) {
    uint64_t in_flight = S.in_flight;
    memset(&S, 0, sizeof S);
    memset(&drive->statistics, 0, sizeof drive->statistics);
    S.in_flight = S.in_flight_peak = in_flight;
    fprintf(out, "ok\n");
  } else if (!strcmp(word, "error")) {
    given = sscanf(line, "%*s %15s %" SCNu64 " %" SCNu64 " %lld", what, &offset, &length, &extra);
    bool reading = !strcmp(what, "read"), right = reading || !strcmp(what, "write");
    struct fault *f;
    if (!right || given < 3 || length == 0 || (given == 4 && extra < 1))
      fprintf(out, "error expected: error read|write OFFSET LENGTH [TIMES]\n");
    else if ((f = free_fault(out))) {
      *f = (struct fault){ .id = ++fault_id, .kind = reading ? ERROR_READ : ERROR_WRITE,
                           .offset = offset, .length = length, .left = given == 4 ? extra : -1 };
      fprintf(out, "ok %u\n", f->id);
    }
  } else if (!strcmp(word, "rot") || !strcmp(word, "misread")) {
    given = sscanf(line, "%*s %" SCNu64 " %" SCNu64 " %lli", &offset, &length, &extra);
    struct fault *f;
    if (given < 3)
      extra = 0xff;
    if (given < 2 || length == 0 || extra < 1 || extra > 255 || offset > size || length > size - offset)
      fprintf(out, "error expected: %s OFFSET LENGTH [FLIP], within the disk, FLIP 1 to 255\n", word);
    else if (!strcmp(word, "rot")) {
      int error = rot_medium(offset, length, (uint8_t)extra);
      if (error)
        fprintf(out, "error the disk's file: %s\n", strerror(error));
      else
        fprintf(out, "ok\n");
    } else if ((f = free_fault(out))) {
      *f = (struct fault){ .id = ++fault_id, .kind = ROT, .offset = offset, .length = length,
                           .left = -1, .flip = (uint8_t)extra };
      fprintf(out, "ok %u\n", f->id);
    }
  } else if (!strcmp(word, "clear")) {
    given = sscanf(line, "%*s %lld", &extra);
    bool found = given != 1;
    for (struct fault *f = faults; f < faults + FAULTS; f++)
      if (f->id && (given != 1 || f->id == extra)) {
        f->id = 0;
        found = true;
      }
    if (given != 1 && drive->stalled > now())
      stall(0);
    fprintf(out, found ? "ok\n" : "error there is no such fault\n");
  } else if (!strcmp(word, "stall")) {
    double seconds = -1;
    if (sscanf(line, "%*s %15s", what) == 1 && !strcmp(what, "release"))
      seconds = HUGE_VAL;
    else if (sscanf(line, "%*s %lf", &seconds) != 1 || !waits)
      seconds = -1;
    if (seconds > 0) {
      stall(seconds < 1e9 ? now() + (uint64_t)(seconds * 1e9) : LAB_NEVER);
      fprintf(out, "ok\n");
    } else
      fprintf(out, "error expected: stall SECONDS|release (SECONDS only where time passes)\n");
  } else if (!strcmp(word, "release")) {
    if (drive->stalled > now())
      stall(0);
    fprintf(out, "ok\n");
  } else if (!strcmp(word, "lose"))
    fprintf(out, "ok %" PRIu64 "\n", lose());
  else
    fprintf(out, "error unknown command '%s': stats, reset, error, rot, misread, clear, stall, "
            "release or lose\n", word);
}

static void *converse(void *socket)
{
  char line[256];
  FILE *in = fdopen((int)(intptr_t)socket, "r"), *out = fdopen(dup((int)(intptr_t)socket), "w");
  while (in && out && fgets(line, sizeof line, in)) {
    pthread_mutex_lock(&lock);
    command(line, out);
    pthread_mutex_unlock(&lock);
    fflush(out);
  }
  if (in)
    fclose(in);
  if (out)
    fclose(out);
  return NULL;
}

static void *listen_to_control(void *unused)
{
  (void)unused;
  for (;;) {
    pthread_t thread;
    int socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (socket < 0 && errno != EINTR && errno != ECONNABORTED)
      return NULL;
    if (socket >= 0 && pthread_create(&thread, NULL, converse, (void *)(intptr_t)socket) == 0)
      pthread_detach(thread);
  }
}

/* ---- start and end */

static int disk_config(const char *key, const char *value)
{
  const char **path = !strcmp(key, "file") ? &file : !strcmp(key, "control") ? &control
                      : !strcmp(key, "log") ? &log_file : NULL;
  if (path)
    return (*path = nbdkit_absolute_path(value)) ? 0 : -1;
  if (!strcmp(key, "speed") && (!strcmp(value, "0") || !strcmp(value, "1"))) {
    waits = *value == '1';
    return 0;
  }
  for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (!strcmp(key, numbers[i].name)) {
      char *end;
      errno = 0;
      *parameter(i) = strtoll(value, &end, 10);
      if (*end || end == value || errno || (*parameter(i) < 0 && strcmp(key, "seek_c"))) {
        nbdkit_error("%s=%s: a whole number was expected", key, value);
        return -1;
      }
      return 0;
    }
  nbdkit_error("unknown parameter '%s'", key);
  return -1;
}

static int disk_config_complete(void)
{
  if (!file) {
    nbdkit_error("file=PATH is missing");
    return -1;
  }
  if (!lab_drive_bytes(&P)) {
    nbdkit_error("a parameter of the drive is missing or out of its range: see lab_drive_valid() in drive.h");
    return -1;
  }
  return 0;
}

static int make_control(void)
{
  struct sockaddr_un address = { .sun_family = AF_UNIX };
  if (!control)
    return 0;
  if (strlen(control) >= sizeof address.sun_path) {
    nbdkit_error("the path of the control socket is too long: %s", control);
    return -1;
  }
  strcpy(address.sun_path, control);
  unlink(control);
  listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8)) {
    nbdkit_error("%s: %m", control);
    return -1;
  }
  return 0;
}

/* Allocates sparse memory: only written pages use memory. */
static void *zeros(uint64_t bytes)
{
  void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? NULL : found;
}

static int disk_get_ready(void)
{
  struct stat status;
  fd = open(file, O_RDWR | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &status)) {
    nbdkit_error("%s: %m", file);
    return -1;
  }
  size = (uint64_t)status.st_size / SECTOR * SECTOR;
  drive = zeros(lab_drive_bytes(&P));
  cache = zeros(P.cache + 1);
  if (!drive || !cache) {
    nbdkit_error("no memory for the drive");
    return -1;
  }
  if (log_file && !(log_to = fopen(log_file, "we"))) {
    nbdkit_error("%s: %m", log_file);
    return -1;
  }
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&work, &monotonic);
  return make_control();
}

static struct sigaction nbdkits[NSIG];

/* nbdkit waits until every client has gone: it never ends beside one that does nothing. */
static void end_connections(int number)
{
  int saved = errno;
  ended = 1;
  nbdkits[number].sa_handler(number);
  for (int each = 3; each < 4 * FILES; each++)
    shutdown(each, SHUT_RDWR);
  errno = saved;
}

static void catch_ends(void)
{
  static const int ends[] = { SIGINT, SIGTERM, SIGQUIT, SIGHUP };
  struct sigaction own = { .sa_handler = end_connections, .sa_flags = SA_RESTART };
  for (unsigned i = 0; i < sizeof ends / sizeof *ends; i++) {
    struct sigaction *before = &nbdkits[ends[i]];
    sigaction(ends[i], NULL, before);
    if (!(before->sa_flags & SA_SIGINFO) && before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN)
      sigaction(ends[i], &own, NULL);
  }
}

static int disk_after_fork(void)
{
  pthread_t thread;
  origin = now();
  if (!lab_drive_init(drive, &P, size, &operations, origin)) {
    nbdkit_error("%s: %" PRIu64 " bytes: too small, or too large for the drive's rates", file, size);
    return -1;
  }
  if (log_to) {
    setlinebuf(log_to);
    fprintf(log_to, "drive %" PRIu64 " %" PRIu64, size, origin);
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
      fprintf(log_to, " %s=%" PRId64, numbers[i].name, *parameter(i));
    fputc('\n', log_to);
  }
  prctl(PR_SET_TIMERSLACK, 1UL); /* inherited by threads: timers fire on time */
  prctl(PR_SET_PDEATHSIG, 0UL);  /* nbdkit 1.32 has set it, but the disks of a kept guest must survive */
  catch_ends();
  if (pthread_create(&timer_thread, NULL, timer, NULL)) {
    nbdkit_error("no thread for the timer");
    return -1;
  }
  if (listener >= 0 && pthread_create(&thread, NULL, listen_to_control, NULL)) {
    nbdkit_error("no thread for the control socket");
    return -1;
  }
  return 0;
}

/* An orderly end: writes the cache to the medium. A killed server loses its cache. */
static void disk_cleanup(void)
{
  pthread_mutex_lock(&lock);
  quitting = true;
  pthread_cond_signal(&work);
  pthread_mutex_unlock(&lock);
  pthread_join(timer_thread, NULL);
  lab_drive_empty(drive);
  if (control)
    unlink(control);
}

static struct nbdkit_plugin plugin = {
  .name = "disk",
  .longname = "disk with the timing of a disk",
  .description = "A hard disk or a solid-state disk in model time, with faults on command",
  .config = disk_config,
  .config_complete = disk_config_complete,
  .config_help = "file=PATH [control=SOCKET] [log=FILE] [speed=0] NAME=NUMBER ...: struct lab_drive_parameters",
  .get_ready = disk_get_ready,
  .after_fork = disk_after_fork,
  .cleanup = disk_cleanup,
  .preconnect = disk_preconnect,
  .open = disk_open,
  .get_size = disk_get_size,
  .block_size = disk_block_size,
  .is_rotational = disk_is_rotational,
  .can_multi_conn = disk_yes, /* one cache for all connections */
  .can_flush = disk_yes,
  .can_fua = disk_can_fua,
  .pread = disk_pread,
  .pwrite = disk_pwrite,
  .flush = disk_flush,
};

NBDKIT_REGISTER_PLUGIN(plugin)
