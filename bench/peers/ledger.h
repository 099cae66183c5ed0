/* What a client keeps of its requests: when each was sent, whether it was answered, and how long that took. The first four
 * bytes of a body are the request's number, so that a reply that is lost, doubled or somebody else's is noticed. */
#ifndef LEDGER_H
#define LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NUMBER_BYTES = 4, BODY_MOST = 1 << 20 };

/* A request that isn't counted: it shows that the way to the worker and back is open. */
#define REHEARSAL UINT32_MAX

struct ledger {
    uint64_t requests, sent, replies, resent, failed;
    double begin;      /* what the times count from */
    double end;        /* when the last reply arrived */
    double longest;    /* seconds between two replies, at most */
    uint32_t *sent_us; /* by number */
    uint8_t *replied;  /* bits by number */
    uint64_t *latency; /* counts, by classes that are exact to 2 % */
};

void ledger_open(struct ledger *ledger, uint64_t requests);
/* The clock starts. */
void ledger_begin(struct ledger *ledger);
/* Counts the next request and returns its number. */
uint32_t ledger_send(struct ledger *ledger, double now);
/* Counts a reply; one that wasn't expected ends the program. */
void ledger_reply(struct ledger *ledger, const void *body, size_t size, double now);
/* A request is sent anew. */
void ledger_resend(struct ledger *ledger);
bool ledger_done(const struct ledger *ledger);
/* Takes over what another one has counted. */
void ledger_add(struct ledger *ledger, const struct ledger *other);
/* Prints one JSON object, named as `tow call --json` names its own. */
void ledger_report(const struct ledger *ledger);

/* A body of `size` bytes for a request. */
void fill_body(unsigned char *body, size_t size, uint32_t number);
uint32_t body_number(const void *body, size_t size);

#endif
