/* A disk with the timing of a disk: an nbdkit plugin over a raw, sparse file.
 *
 * Everything is computed in model time, seconds since the server began. A request's completion is
 * known before it is waited for, and the mechanism's next piece of work begins where the last one
 * ended (`start = max(ready, free_at)`), however late the host woke us: jitter does not add up.
 * How late each completion was is counted, and `stats` reports it.
 *
 * model=hdd. One arm, driven by one thread. The data lie on one spiral: `spiral(x)` is the time a
 * head needs from byte 0 to byte x without ever leaving the track, so that the time of a transfer
 * is a difference of two of its values, and the angle under which a byte passes the head is its
 * remainder by one revolution. Hence
 *   - rotation: after a seek the head waits until the byte comes round;
 *   - the skip-over rule: a request a little ahead costs the time of what lies between;
 *   - sequential requests cost their bytes and nothing else.
 * Seeks follow Ruemmler and Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3),
 * 1994: a + b*sqrt(d) up to seek_limit, c + e*d beyond, d being a fraction of the full stroke, onto
 * which a disk of any size is mapped. The queue takes the shortest positioning time first, less
 * `ageing` times what a request has waited (Jacobson and Wilkes, "Disk scheduling algorithms based
 * on rotational position", HPL-CSP-91-7, 1991: ASPTF), among the oldest `queue_depth` requests.
 * A read goes on reading ahead into one segment until the arm is needed elsewhere; of what was asked
 * for before, the segment keeps the last BEHIND bytes. Writes are
 * acknowledged when they are in the cache; the arm brings them to the medium when it is idle, or in
 * turn with reads when the cache is half full or a flush waits, in one direction over the disk and
 * then from its start again (C-LOOK). FLUSH waits until all that was acknowledged before it is on
 * the medium; a write with FUA goes to the medium at once.
 *
 * model=ssd. Pages of a request go to `channels` by their address, each of which does one page at a
 * time; after every `gc_bytes` written all channels stand still for `gc_seconds`.
 *
 * What is in the cache is in this process's memory and nowhere else: it can be lost on command.
 * Faults are commanded, one line each, over the unix socket `control`; see `command()`.
 */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
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

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL
#define SECTOR 512
#define PAGE 4096               /* what the cache is made of */
#define RUN 256                 /* most pages that one pass of the arm writes */
#define BEHIND (4 << 20)        /* a segment's bytes before the last request; more than is in flight */
#define ZONES 256
#define FAULTS 64
#define LATE_STEP 1e-4          /* width of a class of lateness: 0.1 ms */
#define LATE_CLASSES 2000

/* ---- parameters: seconds, bytes, bytes per second */

static struct {
  const char *file, *control;
  bool ssd;
  double speed;                 /* model seconds per second; 0: nobody waits */
  double seed;                  /* the angle at the beginning */
  double overhead, link_rate, cache;
  double rpm, seek_a, seek_b, seek_c, seek_e, seek_limit, write_settle;
  double outer_rate, inner_rate, zones, read_ahead, queue_depth, ageing;
  double read_latency, write_latency, flush_latency, channels, page, gc_bytes, gc_seconds;
} P = {
  .speed = 1, .link_rate = 1e12, .outer_rate = 1e8, .inner_rate = 1e8, .zones = 1,
  .queue_depth = 32, .channels = 1, .page = PAGE,
};

static const struct { const char *name; double *value; double least; } numbers[] = {
  { "speed", &P.speed, 0 }, { "seed", &P.seed, 0 }, { "overhead", &P.overhead, 0 },
  { "link_rate", &P.link_rate, 1 }, { "cache", &P.cache, 0 }, { "rpm", &P.rpm, 0 },
  { "seek_a", &P.seek_a, -1 }, { "seek_b", &P.seek_b, -1 }, { "seek_c", &P.seek_c, -1 },
  { "seek_e", &P.seek_e, -1 }, { "seek_limit", &P.seek_limit, 0 },
  { "write_settle", &P.write_settle, 0 }, { "outer_rate", &P.outer_rate, 1 },
  { "inner_rate", &P.inner_rate, 1 }, { "zones", &P.zones, 1 },
  { "read_ahead", &P.read_ahead, 0 }, { "queue_depth", &P.queue_depth, 1 },
  { "ageing", &P.ageing, 0 }, { "read_latency", &P.read_latency, 0 },
  { "write_latency", &P.write_latency, 0 }, { "flush_latency", &P.flush_latency, 0 },
  { "channels", &P.channels, 1 }, { "page", &P.page, SECTOR }, { "gc_bytes", &P.gc_bytes, 0 },
  { "gc_seconds", &P.gc_seconds, 0 },
};

/* ---- state; `lock` guards all of it */

struct page {                   /* a dirty page of the cache */
  double time;                  /* when it was acknowledged */
  uint64_t epoch;               /* number of flushes that had come when it became dirty */
  uint8_t mask;                 /* which of its sectors are in `data` */
  unsigned char data[PAGE];
};

struct request {                /* one that needs the arm */
  double arrival, ready, completion;
  uint64_t offset;
  uint32_t length;
  const void *data;             /* a write's; NULL: a read */
  void *into;                   /* a read's */
  bool done;
  int error;
  pthread_cond_t wake;
  struct request *next;
};

struct flush {
  uint64_t epoch;
  uint64_t remaining;           /* dirty pages from before it that are not on the medium yet */
  double completion;
  bool lost;
  pthread_cond_t wake;
  struct flush *next;
};

struct fault {
  unsigned id;                  /* 0: free */
  enum { ERROR_READ = 1, ERROR_WRITE = 2, ROT = 4 } kind;
  uint64_t offset, length;
  int64_t left;                 /* how many more times; -1: always */
  uint8_t flip;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work, space, released; /* on the monotonic clock, set up in get_ready */
static int fd = -1, listener = -1;
static uint64_t size;
static struct timespec origin;
static double virtual_now;      /* the clock, where speed is 0 */
static bool quitting;
static pthread_t arm_thread;

static struct request *queue;   /* oldest first */
static struct flush *flushes;
static bool busy;               /* the arm is at work */
static double free_at;          /* when the arm, or the medium, is free again */
static uint64_t head;           /* byte under the head at head_time */
static double head_time;
static double last_read;
static bool its_turn;           /* a destage's, where the cache presses */

static struct {                 /* the read segment: [start, end) is in the drive's memory */
  bool valid, filling;
  uint64_t start, end, limit;
  double time;                  /* when `end` was reached */
} ahead;

static struct page **dirty;     /* by page number */
static uint64_t *dirty_bits, *dirty_words; /* which pages are dirty; which words of dirty_bits are not 0 */
static uint64_t pages, ndirty, epoch;
static struct page *writing[RUN]; /* on their way to the medium; dropped when the cache is lost */
static uint64_t writing_first, nwriting;
static uint64_t ticket_next, ticket_now; /* writers that wait for space, in order */

static double zone_time[ZONES + 1], zone_rate[ZONES];
static double *channel_free, link_free;
static double gc_written;

static struct fault faults[FAULTS];
static unsigned fault_id;
static double stalled_until = -1; /* HUGE_VAL: until released */
static double stall_ended;        /* lateness up to here is the stall's */

static struct {
  uint64_t reads, writes, flushes, read_bytes, written_bytes, cache_hits, segment_hits;
  uint64_t media_reads, media_writes, destages, skips, in_flight, in_flight_peak, queue_peak;
  uint64_t errors, rotten, lost_bytes, losses, collections, completions, late_over_5ms;
  uint64_t late[LATE_CLASSES];
  double late_max, late_sum, busy;
} S;

/* ---- time */

static double now(void)
{
  struct timespec t;
  if (P.speed == 0)
    return virtual_now;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return ((double)(t.tv_sec - origin.tv_sec) + (double)(t.tv_nsec - origin.tv_nsec) * 1e-9) * P.speed;
}

static struct timespec at(double model)
{
  double real = model / P.speed;
  struct timespec t = origin;
  t.tv_sec += (time_t)real;
  t.tv_nsec += (long)((real - floor(real)) * 1e9);
  if (t.tv_nsec >= 1000000000) {
    t.tv_nsec -= 1000000000;
    t.tv_sec++;
  }
  return t;
}

/* Called without the lock. */
static void sleep_until(double model)
{
  if (P.speed == 0) {
    pthread_mutex_lock(&lock);
    if (model > virtual_now)
      virtual_now = model;
    pthread_mutex_unlock(&lock);
    return;
  }
  struct timespec t = at(model);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
    ;
}

/* Whether the drive is stalled; the stall's end, where it is due, is noticed here. */
static bool stalled(void)
{
  if (stalled_until >= 0 && now() >= stalled_until) {
    stall_ended = stalled_until;
    stalled_until = -1;
    pthread_cond_broadcast(&released);
    pthread_cond_signal(&work);
  }
  return stalled_until >= 0;
}

static void wait_out_stall(pthread_cond_t *cond)
{
  if (isinf(stalled_until)) {
    pthread_cond_wait(cond, &lock);
    return;
  }
  struct timespec until = at(stalled_until);
  pthread_cond_timedwait(cond, &lock, &until);
}

/* A completion is about to be told: hold it back while the drive is stalled, count its lateness. */
static void completed(double model)
{
  while (!quitting && stalled())
    wait_out_stall(&released);
  double late = P.speed == 0 ? 0 : (now() - fmax(model, stall_ended)) / P.speed;
  late = fmax(late, 0);
  unsigned class = (unsigned)fmin(late / LATE_STEP, LATE_CLASSES - 1);
  S.late[class]++;
  S.completions++;
  S.late_over_5ms += late > 0.005;
  S.late_max = fmax(late, S.late_max);
  S.late_sum += late;
  S.in_flight--;
}

static void began(void)
{
  if (++S.in_flight > S.in_flight_peak)
    S.in_flight_peak = S.in_flight;
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

static void mark(uint64_t number, struct page *page)
{
  uint64_t word = number / 64;
  dirty[number] = page;
  if (page)
    dirty_bits[word] |= UINT64_C(1) << number % 64;
  else
    dirty_bits[word] &= ~(UINT64_C(1) << number % 64);
  if (dirty_bits[word])
    dirty_words[word / 64] |= UINT64_C(1) << word % 64;
  else
    dirty_words[word / 64] &= ~(UINT64_C(1) << word % 64);
}

/* First dirty page at or after `from`; `pages` where there is none. */
static uint64_t next_dirty(uint64_t from)
{
  if (from >= pages)
    return pages;
  uint64_t word = from / 64, bits = dirty_bits[word] & (~UINT64_C(0) << from % 64);
  if (!bits) {
    uint64_t top = ++word / 64, words = (pages + 63) / 64, tops = (words + 63) / 64;
    if (word >= words)
      return pages;
    uint64_t some = dirty_words[top] & (~UINT64_C(0) << word % 64);
    while (!some) {
      if (++top >= tops)
        return pages;
      some = dirty_words[top];
    }
    word = top * 64 + (uint64_t)__builtin_ctzll(some);
    bits = dirty_bits[word];
  }
  return word * 64 + (uint64_t)__builtin_ctzll(bits);
}

/* A page from before `e` is on the medium, or lost. */
static void page_gone(uint64_t e, bool lost)
{
  for (struct flush *f = flushes; f; f = f->next)
    if (e <= f->epoch && f->remaining) {
      f->lost |= lost;
      f->completion = free_at > f->completion ? free_at : f->completion;
      if (--f->remaining == 0)
        pthread_cond_signal(&f->wake);
    }
}

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

static void overlay(const struct page *page, uint64_t number, unsigned char *into, uint64_t offset,
                    uint64_t length)
{
  for (unsigned s = 0; s < PAGE / SECTOR; s++) {
    uint64_t where = number * PAGE + s * SECTOR;
    if (page->mask & 1 << s && where >= offset && where < offset + length)
      memcpy(into + (where - offset), page->data + s * SECTOR, SECTOR);
  }
}

/* What a read sees: the medium with its rot, and over it what is newer in the cache. */
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
  uint64_t first = offset / PAGE, last = (offset + length - 1) / PAGE;
  for (uint64_t n = 0; n < nwriting; n++)
    if (writing[n] && writing_first + n >= first && writing_first + n <= last)
      overlay(writing[n], writing_first + n, into, offset, length);
  for (uint64_t n = next_dirty(first); n <= last && n < pages; n = next_dirty(n + 1))
    overlay(dirty[n], n, into, offset, length);
  return error;
}

static bool all_cached(uint64_t offset, uint64_t length)
{
  for (uint64_t where = offset; where < offset + length; where += SECTOR) {
    struct page *page = dirty[where / PAGE];
    if (!page || !(page->mask & 1 << where % PAGE / SECTOR))
      return false;
  }
  return true;
}

static int cache_data(const void *data, uint64_t length, uint64_t offset, double time)
{
  const unsigned char *from = data;
  for (uint64_t where = offset; where < offset + length; where += SECTOR, from += SECTOR) {
    uint64_t number = where / PAGE;
    struct page *page = dirty[number];
    if (!page) {
      if (!(page = calloc(1, sizeof *page)))
        return ENOMEM;
      page->epoch = epoch;
      page->time = time;
      mark(number, page);
      ndirty++;
    }
    page->mask |= (uint8_t)(1 << where % PAGE / SECTOR);
    memcpy(page->data + where % PAGE, from, SECTOR);
  }
  return 0;
}

/* Sectors that a write-through has just put on the medium are not dirty any more. */
static void forget(uint64_t offset, uint64_t length)
{
  uint64_t last = (offset + length - 1) / PAGE;
  for (uint64_t n = next_dirty(offset / PAGE); n <= last && n < pages; n = next_dirty(n + 1)) {
    struct page *page = dirty[n];
    for (unsigned s = 0; s < PAGE / SECTOR; s++)
      if (n * PAGE + s * SECTOR >= offset && n * PAGE + s * SECTOR < offset + length)
        page->mask &= (uint8_t)~(1 << s);
    if (!page->mask) {
      page_gone(page->epoch, false);
      mark(n, NULL);
      ndirty--;
      free(page);
    }
  }
  pthread_cond_broadcast(&space);
}

static int page_to_medium(const struct page *page, uint64_t number)
{
  int error = 0;
  for (unsigned s = 0; s < PAGE / SECTOR; s++)
    if (page->mask & 1 << s) {
      unsigned end = s + 1;
      while (end < PAGE / SECTOR && page->mask & 1 << end)
        end++;
      int wrong = full_pwrite(page->data + s * SECTOR, (end - s) * SECTOR, number * PAGE + s * SECTOR);
      error = wrong ? wrong : error;
      s = end;
    }
  return error;
}

/* The cache as it is when the power fails: gone. Returns how many bytes were. */
static uint64_t lose_cache(void)
{
  uint64_t bytes = 0;
  for (uint64_t n = 0; n < nwriting; n++)
    if (writing[n]) {
      bytes += (uint64_t)__builtin_popcount(writing[n]->mask) * SECTOR;
      page_gone(writing[n]->epoch, true);
      free(writing[n]);
      writing[n] = NULL;
    }
  for (uint64_t n = next_dirty(0); n < pages; n = next_dirty(n + 1)) {
    struct page *page = dirty[n];
    bytes += (uint64_t)__builtin_popcount(page->mask) * SECTOR;
    page_gone(page->epoch, true);
    mark(n, NULL);
    free(page);
  }
  ndirty = 0;
  ahead.valid = false;
  S.losses++;
  S.lost_bytes += bytes;
  pthread_cond_broadcast(&space);
  return bytes;
}

/* ---- hdd: geometry */

static double spiral(uint64_t x)
{
  double zone_bytes = (double)size / P.zones;
  unsigned zone = (unsigned)((double)x / zone_bytes);
  if (zone >= (unsigned)P.zones)
    zone = (unsigned)P.zones - 1;
  return zone_time[zone] + ((double)x - zone * zone_bytes) / zone_rate[zone];
}

static double revolution(void)
{
  return P.rpm > 0 ? 60 / P.rpm : 0;
}

/* Seconds from `t` until byte x comes round under the head. */
static double rotation(double t, uint64_t x)
{
  double rev = revolution();
  double wait = rev > 0 ? fmod(spiral(x) + P.seed - t, rev) : 0;
  return wait < 0 ? wait + rev : wait;
}

static double seek_time(double distance)
{
  return distance < P.seek_limit ? P.seek_a + P.seek_b * sqrt(distance) : P.seek_c + P.seek_e * distance;
}

/* Seconds from `t` until byte x is under the head. */
static double position(double t, uint64_t x, bool write, bool *skip)
{
  double rev = revolution(), gap = spiral(x) - spiral(head);
  double track = rev > 0 ? rev : 1e-3;
  *skip = false;
  if (gap >= 0 && gap <= track && head_time + gap >= t - 1e-9) {
    *skip = true;               /* it is about to pass under the head, which need not move */
    return head_time + gap > t ? head_time + gap - t : 0;
  }
  double seek = 0;
  if (fabs(gap) > track)
    seek = seek_time(fabs((double)x - (double)head) / (double)size) + (write ? P.write_settle : 0);
  return seek + rotation(t + seek, x);
}

/* ---- hdd: reading ahead */

static void fill_until(double t)
{
  if (!ahead.valid || !ahead.filling || t <= ahead.time)
    return;
  double reach = spiral(ahead.end) + (t - ahead.time);
  uint64_t low = ahead.end, high = ahead.limit;
  while (low < high) {          /* the last byte that the spiral has reached by then */
    uint64_t middle = low + (high - low + 1) / 2;
    if (spiral(middle) <= reach)
      low = middle;
    else
      high = middle - 1;
  }
  ahead.time += spiral(low) - spiral(ahead.end);
  ahead.end = head = low;
  head_time = ahead.time;
}

/* There is room for more: reading ahead goes on, and where it had stopped, a rotation later. */
static void make_room(uint64_t end, double t)
{
  uint64_t limit = end + (uint64_t)P.read_ahead;
  limit = limit < size ? limit : size;
  if (limit <= ahead.limit)
    return;
  if (ahead.filling && ahead.end == ahead.limit && ahead.time < t)
    ahead.time = t + rotation(t, ahead.end);
  ahead.limit = limit;
}

static void stop_filling(double t)
{
  fill_until(t);
  ahead.filling = false;
}

static void read_on(uint64_t start, uint64_t end, double t)
{
  uint64_t limit = end + (uint64_t)P.read_ahead;
  ahead.valid = ahead.filling = P.read_ahead > 0;
  ahead.start = start;
  ahead.end = end;
  ahead.limit = limit < size ? limit : size;
  ahead.time = t;
}

/* What lies far behind the last request gives way to what comes. */
static void pass_on(uint64_t offset)
{
  if (offset > ahead.start + BEHIND)
    ahead.start = offset - BEHIND;
}

/* The cable carries one request's bytes after the other's: when it has carried these. */
static double over_link(uint64_t length, double ready)
{
  double start = link_free > ready ? link_free : ready;
  link_free = start + (double)length / P.link_rate;
  return link_free;
}

/* When a command that comes now has been taken in: where the queue holds one, the next is sent only
 * when the cable has carried all of the one before. */
static double taken_in(double arrival)
{
  return (P.queue_depth <= 1 ? fmax(arrival, link_free) : arrival) + P.overhead;
}

/* A read that the segment holds, or will hold soon: its completion; negative: the arm must move.
 * `turn`: the arm has nothing else to do, for it has come to this request. */
static double from_segment(uint64_t offset, uint64_t length, double ready, bool turn)
{
  uint64_t end = offset + length;
  if (!ahead.valid || offset < ahead.start)
    return -1;
  fill_until(ready);
  if (end <= ahead.end) {
    pass_on(offset);
    make_room(end, ready);
    return over_link(length, ready);
  }
  /* Else the head must be on its way to it, less than a revolution off, with nothing else to do. */
  if (!ahead.filling || (!turn && (busy || queue)) || spiral(offset) - spiral(ahead.end) > revolution())
    return -1;
  pass_on(offset);
  make_room(end, ready);
  double reached = ahead.time + spiral(end) - spiral(ahead.end);
  ahead.end = head = end;
  ahead.time = head_time = free_at = reached;
  return fmax(reached, over_link(length, ready));
}

/* ---- hdd: the arm */

static bool pressed(void)
{
  return flushes || ticket_next != ticket_now || (double)((ndirty + nwriting) * PAGE) > P.cache / 2;
}

/* The request that is next, taken out of the queue; its start in *start. */
static struct request *choose(double *start, double *positioning, bool *skip)
{
  struct request **best = NULL;
  double least = HUGE_VAL, t = free_at;
  unsigned seen = 0;
  for (struct request **r = &queue; *r && seen < (unsigned)P.queue_depth; r = &(*r)->next, seen++) {
    double from = (*r)->ready > t ? (*r)->ready : t;
    bool skipping;
    double cost = position(from, (*r)->offset, (*r)->data, &skipping);
    double aged = from - t + cost - P.ageing * (from - (*r)->arrival);
    if (aged < least) {
      least = aged;
      best = r;
      *start = from;
      *positioning = cost;
      *skip = skipping;
    }
  }
  struct request *chosen = *best;
  *best = chosen->next;
  return chosen;
}

static double transfer(uint64_t from, uint64_t to)
{
  double media = spiral(to) - spiral(from), link = (double)(to - from) / P.link_rate;
  return media > link ? media : link;
}

static void serve(struct request *r, double start, double positioning, bool skip)
{
  uint64_t end = r->offset + r->length;
  stop_filling(start);
  r->completion = start + positioning + transfer(r->offset, end);
  link_free = fmax(link_free, r->completion);
  S.busy += r->completion - start;
  S.skips += skip;
  busy = true;
  pthread_mutex_unlock(&lock);
  sleep_until(r->completion);
  pthread_mutex_lock(&lock);
  busy = false;
  free_at = head_time = r->completion;
  head = end;
  if (r->data) {
    r->error = full_pwrite(r->data, r->length, r->offset);
    forget(r->offset, r->length);
    S.media_writes++;
    ahead.valid = false;
  } else {
    r->error = read_data(r->into, r->length, r->offset);
    S.media_reads++;
    read_on(r->offset, end, r->completion);
    last_read = r->completion;
  }
  r->done = true;
  pthread_cond_signal(&r->wake);
}

/* Whether the head, reading ahead, has come to a read by the time that it is this one's turn. */
static bool serve_from_segment(struct request *r, double start)
{
  double completion = r->data ? -1 : from_segment(r->offset, r->length, start, true);
  if (completion < 0)
    return false;
  r->completion = last_read = completion;
  S.segment_hits++;
  busy = true;
  pthread_mutex_unlock(&lock);
  sleep_until(completion);
  pthread_mutex_lock(&lock);
  busy = false;
  r->error = read_data(r->into, r->length, r->offset);
  r->done = true;
  pthread_cond_signal(&r->wake);
  return true;
}

/* The dirty page from which the arm goes on: C-LOOK, and while a flush waits only what it wants. */
static uint64_t next_destage(void)
{
  uint64_t wanted = flushes ? flushes->epoch : epoch, from = (head + PAGE - 1) / PAGE;
  for (int round = 0; round < 2; round++, from = 0)
    for (uint64_t n = next_dirty(from); n < pages; n = next_dirty(n + 1))
      if (dirty[n]->epoch <= wanted)
        return n;
  return pages;
}

static void destage(uint64_t first)
{
  uint64_t wanted = flushes ? flushes->epoch : epoch;
  double start = free_at;
  writing_first = first;
  nwriting = 0;
  for (uint64_t n = first; n < pages && nwriting < RUN && dirty[n] && dirty[n]->epoch <= wanted; n++) {
    if (dirty[n]->time > start)
      start = dirty[n]->time;
    writing[nwriting++] = dirty[n];
    mark(n, NULL);
    ndirty--;
  }
  unsigned low = (unsigned)__builtin_ctz(writing[0]->mask);
  unsigned high = 31 - (unsigned)__builtin_clz(writing[nwriting - 1]->mask);
  uint64_t from = first * PAGE + low * SECTOR;
  uint64_t end = (first + nwriting - 1) * PAGE + (high + 1) * SECTOR;
  bool skip;
  stop_filling(start);
  double positioning = position(start, from, true, &skip);
  double completion = start + positioning + spiral(end) - spiral(from);
  S.busy += completion - start;
  S.skips += skip;
  S.destages++;
  busy = true;
  pthread_mutex_unlock(&lock);
  sleep_until(completion);
  pthread_mutex_lock(&lock);
  busy = false;
  free_at = head_time = completion;
  head = end;
  if (ahead.valid && from < ahead.end && end > ahead.start)
    ahead.valid = false;
  for (uint64_t n = 0; n < nwriting; n++)
    if (writing[n]) {           /* else it was lost on the way */
      if (page_to_medium(writing[n], first + n))
        nbdkit_error("the disk's file cannot be written: %m");
      page_gone(writing[n]->epoch, false);
      free(writing[n]);
      writing[n] = NULL;
    }
  nwriting = 0;
  pthread_cond_broadcast(&space);
}

static void *arm(void *unused)
{
  (void)unused;
  prctl(PR_SET_TIMERSLACK, 1UL);
  pthread_mutex_lock(&lock);
  while (!quitting) {
    if (stalled()) {
      wait_out_stall(&work);
      continue;
    }
    free_at = fmax(free_at, stall_ended);
    if (!queue && !ndirty) {
      pthread_cond_wait(&work, &lock);
      continue;
    }
    bool press = ndirty && pressed();
    if (queue && !(press && its_turn)) {
      double start = 0, positioning = 0;
      bool skip = false;
      struct request *r = choose(&start, &positioning, &skip);
      its_turn = true;
      if (!serve_from_segment(r, start))
        serve(r, start, positioning, skip);
      continue;
    }
    /* The head stays where somebody reads for two revolutions, lest each read pays a way back. */
    double rest = last_read + 2 * revolution();
    if (!press && !queue && P.speed > 0 && last_read > 0 && now() < rest) {
      struct timespec until = at(rest);
      pthread_cond_timedwait(&work, &lock, &until);
      continue;
    }
    uint64_t first = next_destage();
    its_turn = false;
    if (first < pages)
      destage(first);
    else if (!queue)
      pthread_cond_wait(&work, &lock);
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

static int with_arm(struct request *r)
{
  unsigned depth = 1;
  struct request **last = &queue;
  stop_filling(r->ready);
  while (*last)
    last = &(*last)->next, depth++;
  *last = r;
  if (depth > S.queue_peak)
    S.queue_peak = depth;
  pthread_cond_signal(&work);
  while (!r->done && !quitting)
    pthread_cond_wait(&r->wake, &lock);
  return r->done ? r->error : ESHUTDOWN;
}

/* ---- ssd */

static double on_channels(uint64_t offset, uint64_t length, double ready, double latency)
{
  double end = ready;
  for (uint64_t page = offset / (uint64_t)P.page; page * (uint64_t)P.page < offset + length; page++) {
    double *channel = channel_free + page % (uint64_t)P.channels;
    double start = *channel > ready ? *channel : ready;
    *channel = start + latency;
    end = *channel > end ? *channel : end;
  }
  return over_link(length, end);
}

static void collect_garbage(uint64_t length, double t)
{
  gc_written += (double)length;
  if (P.gc_bytes == 0 || gc_written < P.gc_bytes)
    return;
  gc_written -= P.gc_bytes;
  S.collections++;
  for (unsigned c = 0; c < (unsigned)P.channels; c++)
    channel_free[c] = (channel_free[c] > t ? channel_free[c] : t) + P.gc_seconds;
}

/* All of the ssd's cache, or as much as is over its size, goes to the medium; time is charged
 * elsewhere. */
static int empty_cache(uint64_t keep)
{
  int error = 0;
  for (uint64_t n = next_dirty(0); n < pages && ndirty > keep; n = next_dirty(n + 1)) {
    struct page *page = dirty[n];
    int wrong = page_to_medium(page, n);
    error = wrong ? wrong : error;
    mark(n, NULL);
    ndirty--;
    free(page);
  }
  return error;
}

/* ---- requests. Each enters and leaves with the lock. */

static int do_read(void *into, uint32_t length, uint64_t offset)
{
  double arrival = now(), ready = P.ssd ? arrival + P.overhead : taken_in(arrival), completion;
  int error = 0;
  if (P.ssd)
    completion = on_channels(offset, length, ready, P.read_latency);
  else if (all_cached(offset, length)) {
    completion = over_link(length, ready);
    S.cache_hits++;
  } else if ((completion = from_segment(offset, length, ready, false)) >= 0) {
    S.segment_hits++;
    last_read = completion;
  } else {
    struct request r = { .arrival = arrival, .ready = ready, .offset = offset, .length = length,
                         .into = into };
    pthread_cond_init(&r.wake, NULL);
    error = with_arm(&r);
    pthread_cond_destroy(&r.wake);
    completed(r.completion);
    return error;
  }
  pthread_mutex_unlock(&lock);
  sleep_until(completion);
  pthread_mutex_lock(&lock);
  completed(completion);
  return read_data(into, length, offset);
}

static int do_write(const void *data, uint32_t length, uint64_t offset, bool fua)
{
  double arrival = now(), ready, completion;
  int error = 0;
  if (P.ssd) {
    completion = on_channels(offset, length, arrival + P.overhead, P.write_latency);
    if (fua)
      completion += P.flush_latency;
    collect_garbage(length, completion);
    pthread_mutex_unlock(&lock);
    sleep_until(completion);
    pthread_mutex_lock(&lock);
    completed(completion);
    if (fua || P.cache == 0) {
      error = full_pwrite(data, length, offset);
      forget(offset, length);
    } else if (!(error = cache_data(data, length, offset, completion)))
      error = empty_cache((uint64_t)P.cache / PAGE);
    return error;
  }
  ready = over_link(length, taken_in(arrival));
  uint64_t most = (length / PAGE + 2) * PAGE;
  if (fua || (double)most > P.cache) {
    struct request r = { .arrival = arrival, .ready = ready, .offset = offset, .length = length,
                         .data = data };
    pthread_cond_init(&r.wake, NULL);
    error = with_arm(&r);
    pthread_cond_destroy(&r.wake);
    completed(r.completion);
    return error;
  }
  uint64_t ticket = ticket_next++;
  bool waited = false;
  while (!quitting && (ticket != ticket_now || (double)((ndirty + nwriting) * PAGE + most) > P.cache)) {
    waited = true;
    pthread_cond_signal(&work);
    pthread_cond_wait(&space, &lock);
  }
  ticket_now++;
  pthread_cond_broadcast(&space);
  completion = waited && free_at > ready ? free_at : ready;
  if (ahead.valid && offset < ahead.end && offset + length > ahead.start)
    ahead.valid = false;
  error = cache_data(data, length, offset, completion);
  pthread_cond_signal(&work);
  pthread_mutex_unlock(&lock);
  sleep_until(completion);
  pthread_mutex_lock(&lock);
  completed(completion);
  return error;
}

static int do_flush(void)
{
  double completion = now() + P.overhead;
  int error = 0;
  if (P.ssd) {
    for (unsigned c = 0; c < (unsigned)P.channels; c++)
      completion = channel_free[c] > completion ? channel_free[c] : completion;
    completion += P.flush_latency;
    error = empty_cache(0);
  } else if (ndirty + nwriting) {
    struct flush f = { .epoch = epoch++, .remaining = ndirty + nwriting, .completion = completion };
    struct flush **last = &flushes;
    pthread_cond_init(&f.wake, NULL);
    while (*last)
      last = &(*last)->next;
    *last = &f;
    pthread_cond_signal(&work);
    while (f.remaining && !quitting)
      pthread_cond_wait(&f.wake, &lock);
    for (last = &flushes; *last != &f; last = &(*last)->next)
      ;
    *last = f.next;
    pthread_cond_signal(&work);
    pthread_cond_destroy(&f.wake);
    completed(f.completion);
    return f.lost ? EIO : 0;
  }
  pthread_mutex_unlock(&lock);
  sleep_until(completion);
  pthread_mutex_lock(&lock);
  completed(completion);
  return error;
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
  began();
  S.reads++;
  S.read_bytes += length;
  int error = do_read(into, length, offset);
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
  if (error)
    return answer(error);
  began();
  S.writes++;
  S.written_bytes += length;
  return answer(do_write(data, length, offset, flags & NBDKIT_FLAG_FUA));
}

static int disk_flush(void *handle, uint32_t flags)
{
  (void)handle, (void)flags;
  pthread_mutex_lock(&lock);
  began();
  S.flushes++;
  return answer(do_flush());
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
  return !P.ssd;
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
  *maximum = 32 * 1024 * 1024;
  return 0;
}

/* ---- the control socket: a line in, a line out, beginning with "ok" or "error" */

static double late_share(double share)
{
  uint64_t wanted = (uint64_t)((double)S.completions * share), seen = 0;
  for (unsigned class = 0; class < LATE_CLASSES; class++)
    if ((seen += S.late[class]) > wanted)
      return class * LATE_STEP;
  return 0;
}

static void statistics(FILE *out)
{
  const struct { const char *name; uint64_t value; } counts[] = {
    { "reads", S.reads }, { "writes", S.writes }, { "flushes", S.flushes },
    { "read_bytes", S.read_bytes }, { "written_bytes", S.written_bytes },
    { "cache_hits", S.cache_hits }, { "segment_hits", S.segment_hits },
    { "media_reads", S.media_reads }, { "media_writes", S.media_writes },
    { "destages", S.destages }, { "skips", S.skips }, { "in_flight", S.in_flight },
    { "in_flight_peak", S.in_flight_peak }, { "queue_peak", S.queue_peak },
    { "dirty_bytes", (ndirty + nwriting) * PAGE }, { "errors", S.errors }, { "rotten", S.rotten },
    { "losses", S.losses }, { "lost_bytes", S.lost_bytes }, { "collections", S.collections },
    { "completions", S.completions }, { "late_over_5ms", S.late_over_5ms },
  };
  fprintf(out, "ok {\"model\": \"%s\"", P.ssd ? "ssd" : "hdd");
  for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++)
    fprintf(out, ", \"%s\": %" PRIu64, counts[i].name, counts[i].value);
  fprintf(out, ", \"seconds\": %.6f, \"busy_seconds\": %.6f", now(), S.busy);
  fprintf(out, ", \"late_mean\": %.6f, \"late_median\": %.4f, \"late_99\": %.4f, \"late_max\": %.6f}\n",
          S.completions ? S.late_sum / (double)S.completions : 0, late_share(0.5), late_share(0.99),
          S.late_max);
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

/* Commands; offsets and lengths are bytes. Called with the lock.
 *   stats                                   ok and the counters as JSON
 *   reset                                   counters to 0
 *   error read|write OFFSET LENGTH [TIMES]  EIO for what touches the range; ok ID
 *   rot OFFSET LENGTH [FLIP]                the medium's bytes change, once; a write mends them; ok
 *   misread OFFSET LENGTH [FLIP]            they come out changed until the fault is cleared; ok ID
 *   clear [ID]                              that fault, or all, and a stall
 *   stall SECONDS|release                   nothing completes for that long, or until `release`
 *   release                                 the stall ends
 *   lose                                    the volatile cache is lost; ok BYTES
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
    if (given != 1 && stalled_until >= 0)
      stalled_until = now();
    stalled();
    fprintf(out, found ? "ok\n" : "error there is no such fault\n");
  } else if (!strcmp(word, "stall")) {
    double seconds = -1;
    if (sscanf(line, "%*s %15s", what) == 1 && !strcmp(what, "release"))
      seconds = HUGE_VAL;
    else if (sscanf(line, "%*s %lf", &seconds) != 1 || P.speed == 0)
      seconds = -1;
    if (seconds > 0) {
      stalled_until = isinf(seconds) ? HUGE_VAL : now() + seconds * P.speed; /* inf * 0 is none */
      fprintf(out, "ok\n");
    } else
      fprintf(out, "error expected: stall SECONDS|release (SECONDS only where time passes)\n");
  } else if (!strcmp(word, "release")) {
    if (stalled_until >= 0)
      stalled_until = now();
    stalled();
    fprintf(out, "ok\n");
  } else if (!strcmp(word, "lose"))
    fprintf(out, "ok %" PRIu64 "\n", lose_cache());
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

/* ---- beginning and end */

static int disk_config(const char *key, const char *value)
{
  if (!strcmp(key, "file") || !strcmp(key, "control")) {
    char *path = nbdkit_absolute_path(value);
    *(key[0] == 'f' ? &P.file : &P.control) = path;
    return path ? 0 : -1;
  }
  if (!strcmp(key, "model")) {
    P.ssd = !strcmp(value, "ssd");
    if (!P.ssd && strcmp(value, "hdd")) {
      nbdkit_error("model=%s: it is hdd or ssd", value);
      return -1;
    }
    return 0;
  }
  for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (!strcmp(key, numbers[i].name)) {
      char *end;
      double number = strtod(value, &end);
      if (*end || end == value || !isfinite(number) || number < numbers[i].least) {
        nbdkit_error("%s=%s: a number of %g or more was expected", key, value, numbers[i].least);
        return -1;
      }
      *numbers[i].value = number;
      return 0;
    }
  nbdkit_error("unknown parameter '%s'", key);
  return -1;
}

static int disk_config_complete(void)
{
  if (!P.file) {
    nbdkit_error("file=PATH is missing");
    return -1;
  }
  if (P.zones > ZONES) {
    nbdkit_error("zones=%g: %d at most", P.zones, ZONES);
    return -1;
  }
  return 0;
}

static int make_control(void)
{
  struct sockaddr_un address = { .sun_family = AF_UNIX };
  if (!P.control)
    return 0;
  if (strlen(P.control) >= sizeof address.sun_path) {
    nbdkit_error("the path of the control socket is too long: %s", P.control);
    return -1;
  }
  strcpy(address.sun_path, P.control);
  unlink(P.control);
  listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 8)) {
    nbdkit_error("%s: %m", P.control);
    return -1;
  }
  return 0;
}

/* Sparse as far as it is not used: only what is written to takes memory. */
static void *zeros(uint64_t bytes)
{
  void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return found == MAP_FAILED ? NULL : found;
}

static int disk_get_ready(void)
{
  struct stat status;
  fd = open(P.file, O_RDWR | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &status)) {
    nbdkit_error("%s: %m", P.file);
    return -1;
  }
  size = (uint64_t)status.st_size / SECTOR * SECTOR;
  pages = (size + PAGE - 1) / PAGE;
  if (pages == 0) {
    nbdkit_error("%s: it is empty", P.file);
    return -1;
  }
  dirty = zeros(pages * sizeof *dirty);
  dirty_bits = zeros((pages / 64 + 1) * sizeof *dirty_bits);
  dirty_words = zeros((pages / 4096 + 1) * sizeof *dirty_words);
  channel_free = calloc((size_t)P.channels, sizeof *channel_free);
  if (!dirty || !dirty_bits || !dirty_words || !channel_free) {
    nbdkit_error("no memory for %" PRIu64 " pages", pages);
    return -1;
  }
  unsigned zones = (unsigned)P.zones;
  for (unsigned z = 0; z < zones; z++) {
    zone_rate[z] = P.outer_rate + (P.inner_rate - P.outer_rate) * z / (zones > 1 ? zones - 1 : 1);
    zone_time[z + 1] = zone_time[z] + (double)size / P.zones / zone_rate[z];
  }
  P.seed = revolution() * fmod(P.seed * 0.6180339887498949, 1); /* golden section: all angles differ */
  pthread_condattr_t monotonic;
  pthread_condattr_init(&monotonic);
  pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  pthread_cond_init(&work, &monotonic);
  pthread_cond_init(&space, &monotonic);
  pthread_cond_init(&released, &monotonic);
  return make_control();
}

static int disk_after_fork(void)
{
  pthread_t thread;
  clock_gettime(CLOCK_MONOTONIC, &origin);
  /* Drives turn with the host's clock and not from when their servers began: between each other
   * they stand as their seeds say, in every run. */
  if (P.speed > 0 && revolution() > 0)
    P.seed -= fmod(((double)origin.tv_sec + (double)origin.tv_nsec * 1e-9) * P.speed, revolution());
  prctl(PR_SET_TIMERSLACK, 1UL); /* threads inherit it: timers fire when they are due */
  prctl(PR_SET_PDEATHSIG, 0UL);  /* nbdkit 1.32 has set it, and a kept guest keeps its disks */
  if (!P.ssd && pthread_create(&arm_thread, NULL, arm, NULL)) {
    nbdkit_error("no thread for the arm");
    return -1;
  }
  if (listener >= 0 && pthread_create(&thread, NULL, listen_to_control, NULL)) {
    nbdkit_error("no thread for the control socket");
    return -1;
  }
  return 0;
}

/* An orderly end: what is in the cache goes to the medium. A killed server loses it. */
static void disk_cleanup(void)
{
  pthread_mutex_lock(&lock);
  quitting = true;
  pthread_cond_broadcast(&work);
  pthread_mutex_unlock(&lock);
  if (!P.ssd)
    pthread_join(arm_thread, NULL);
  pthread_mutex_lock(&lock);
  empty_cache(0);
  pthread_mutex_unlock(&lock);
  if (P.control)
    unlink(P.control);
}

static struct nbdkit_plugin plugin = {
  .name = "disk",
  .longname = "disk with the timing of a disk",
  .description = "A hard disk or a solid-state disk in model time, with faults on command",
  .config = disk_config,
  .config_complete = disk_config_complete,
  .config_help = "file=PATH model=hdd|ssd [control=SOCKET] [NAME=NUMBER ...]",
  .get_ready = disk_get_ready,
  .after_fork = disk_after_fork,
  .cleanup = disk_cleanup,
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
