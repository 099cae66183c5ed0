#include "ledger.h"
#include "peer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Microseconds below 64 have a class each; above, every power of two is divided into 64. */
enum { FINE_BITS = 6, FINE = 1 << FINE_BITS, CLASSES = FINE * (32 - FINE_BITS + 1) };

static size_t class_of(uint32_t us) {
    if (us < FINE) return us;
    int shift = 31 - __builtin_clz(us) - FINE_BITS;
    return (size_t)(shift + 1) * FINE + ((us >> shift) - FINE);
}

static double middle_of(size_t class) {
    if (class < FINE) return (double)class;
    size_t shift = class / FINE - 1;
    return ((double)(class % FINE + FINE) + 0.5) * (double)(1ULL << shift);
}

void ledger_open(struct ledger *ledger, uint64_t requests) {
    *ledger = (struct ledger){.requests = requests};
    ledger->sent_us = calloc(requests + 1, sizeof *ledger->sent_us);
    ledger->replied = calloc(requests / 8 + 1, 1);
    ledger->latency = calloc(CLASSES, sizeof *ledger->latency);
    if (ledger->sent_us == NULL || ledger->replied == NULL || ledger->latency == NULL) die("calloc");
}

void ledger_begin(struct ledger *ledger) { ledger->begin = ledger->end = now_seconds(); }

uint32_t ledger_send(struct ledger *ledger, double now) {
    uint32_t number = (uint32_t)ledger->sent++;
    ledger->sent_us[number] = (uint32_t)((now - ledger->begin) * 1e6);
    return number;
}

void ledger_reply(struct ledger *ledger, const void *body, size_t size, double now) {
    uint32_t number = body_number(body, size);
    if (number >= ledger->sent) die_because("reply", "to a request that was never sent");
    uint8_t bit = (uint8_t)(1 << number % 8);
    if (ledger->replied[number / 8] & bit) die_because("reply", "a second one to the same request");
    ledger->replied[number / 8] |= bit;
    ledger->replies++;
    ledger->latency[class_of((uint32_t)((now - ledger->begin) * 1e6) - ledger->sent_us[number])]++;
    if (now - ledger->end > ledger->longest) ledger->longest = now - ledger->end;
    ledger->end = now;
}

void ledger_resend(struct ledger *ledger) { ledger->resent++; }

bool ledger_done(const struct ledger *ledger) { return ledger->replies >= ledger->requests; }

void ledger_add(struct ledger *ledger, const struct ledger *other) {
    ledger->requests += other->requests;
    ledger->replies += other->replies;
    ledger->resent += other->resent;
    ledger->failed += other->failed;
    if (ledger->begin == 0 || other->begin < ledger->begin) ledger->begin = other->begin;
    if (other->end > ledger->end) ledger->end = other->end;
    if (other->longest > ledger->longest) ledger->longest = other->longest;
    for (size_t i = 0; i < CLASSES; i++) ledger->latency[i] += other->latency[i];
}

static double quantile_us(const struct ledger *ledger, double share) {
    uint64_t before = 0;
    for (size_t i = 0; i < CLASSES; i++) {
        before += ledger->latency[i];
        if ((double)before >= share * (double)ledger->replies && before > 0) return middle_of(i);
    }
    return 0;
}

void ledger_report(const struct ledger *ledger) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double seconds = ledger->end - ledger->begin;
    printf("{\"requests\":%" PRIu64 ",\"replies\":%" PRIu64 ",\"failed\":%" PRIu64 ",\"resent\":%" PRIu64 ",\"seconds\":%.6f,"
           "\"per_second\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"longest_pause_ms\":%.3f,\"peak_kib\":%ld}\n",
           ledger->requests, ledger->replies, ledger->failed, ledger->resent, seconds,
           seconds > 0 ? (double)ledger->replies / seconds : 0.0, quantile_us(ledger, 0.5), quantile_us(ledger, 0.99),
           ledger->longest * 1e3, usage.ru_maxrss);
}

void fill_body(unsigned char *body, size_t size, uint32_t number) {
    if (size < NUMBER_BYTES) die_because("body", "too small for a number");
    memcpy(body, &number, NUMBER_BYTES);
    memset(body + NUMBER_BYTES, 'x', size - NUMBER_BYTES);
}

uint32_t body_number(const void *body, size_t size) {
    uint32_t number;
    if (size < NUMBER_BYTES) die_because("reply", "without a number");
    memcpy(&number, body, NUMBER_BYTES);
    return number;
}
