// call ENDPOINT[,ENDPOINT...] SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] <LINES sends a numbered request for each line, and prints
// NUMBER STATUS REPLY as the replies come. When a broker is lost, what has no outcome goes to the next, under the same numbers.
#include "towpath.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#define AHEAD 1000             // requests that may wait for their outcome
#define NEVER INT64_MAX        // when a request is sent that has been sent
#define BLOCK_BYTES (256 << 10) // of requests that are sent as one message

typedef struct {
    char *body;
    size_t size;
    int64_t due; // when to send it
    bool resent; // it was sent over an earlier connection
    bool settled;
    buffer parts; // of the reply
} request;

typedef struct {
    uint8_t id[TOKEN_BYTES];
    const char *service;
    request *requests; // the first has number 1
    size_t count, first; // all before the first are settled
    bool failed;
    buffer block;
} caller;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * INT64_C(1000) + time.tv_nsec / 1000000;
}

// Sends what is due, and sets how long to wait until something else is; false if the connection is lost.
static bool send_due(link_to *link, caller *caller, long *wait) {
    int64_t time = now(), next = NEVER;
    for (size_t n = caller->first; n < caller->count && n < caller->first + AHEAD; n++) {
        request *request = &caller->requests[n];
        if (request->settled) continue;
        if (request->due > time) {
            if (request->due < next) next = request->due;
            continue;
        }
        request->due = NEVER;
        uint8_t flags = request->resent ? RESENT : 0;
        bool attached = put_request(&caller->block, n + 1, caller->service, 0, flags, request->body, request->size);
        if ((attached || caller->block.size > BLOCK_BYTES)
            && !send_block(link, CLIENT_HEADER, &caller->block, attached ? request->body : NULL, request->size)) return false;
    }
    *wait = next == NEVER ? -1 : (long)(next - time);
    return send_block(link, CLIENT_HEADER, &caller->block, NULL, 0);
}

static void settle(caller *caller, request *request, record *record) {
    uint16_t status = record->status;
    if (status == 206) status = 410; // its parts were sent over an earlier connection
    put_body(&request->parts, record);
    printf("%" PRIu64 " %u %.*s\n", record->number, status, (int)request->parts.size, (char *)request->parts.data);
    fflush(stdout);
    free(request->parts.data);
    request->parts = (buffer){0};
    request->settled = true;
    if (status != 200) caller->failed = true;
    put_confirm(&caller->block, record->number, 1);
}

static void take(caller *caller, record *record) {
    if (record->kind != REPLY && record->kind != REFUSED) return;
    if (record->number - 1 >= caller->count || caller->requests[record->number - 1].settled) return;
    request *request = &caller->requests[record->number - 1];
    if (record->flags & PARTIAL) put_body(&request->parts, record);
    else if (record->kind == REFUSED && record->millis) request->due = now() + record->millis;
    else settle(caller, request, record);
}

static bool session(link_to *link, void *state) {
    caller *caller = state;
    for (size_t n = 0; n < caller->count; n++) {
        request *request = &caller->requests[n];
        request->resent |= request->due == NEVER;
        request->due = request->parts.size = 0;
    }
    caller->block.size = 0;
    put_hello(&caller->block, caller->id, caller->first + 1);
    while (caller->first < caller->count) {
        long wait;
        if (!send_due(link, caller, &wait)) return false;
        message message;
        enum received received = receive(link, wait, &message);
        if (received == LOST) return false;
        if (received == TIMEOUT) continue;
        reader records;
        if (!read_message(&message, CLIENT_HEADER, &records)) die("%s is no broker of numbered requests", link->endpoint);
        record record;
        int found;
        while ((found = next_record(&records, &record)) > 0) take(caller, &record);
        if (found < 0) die("%s: a message is malformed", link->endpoint);
        close_message(&message);
        while (caller->first < caller->count && caller->requests[caller->first].settled) caller->first++;
    }
    send_block(link, CLIENT_HEADER, &caller->block, NULL, 0);
    return true;
}

static void read_lines(caller *caller) {
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t size; (size = getline(&line, &capacity, stdin)) >= 0; line = NULL) {
        if (size > 0 && line[size - 1] == '\n') size--;
        caller->requests = realloc(caller->requests, (caller->count + 1) * sizeof *caller->requests);
        if (!caller->requests) die("no memory");
        caller->requests[caller->count++] = (request){.body = line, .size = size};
    }
}

int main(int count, char **arguments) {
    if (count < 3) die("usage: call ENDPOINT[,ENDPOINT...] SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] <LINES");
    keys keys = read_keys(count - 3, arguments + 3);
    caller caller = {.service = arguments[2]};
    if (getrandom(caller.id, sizeof caller.id, 0) != sizeof caller.id) die("there is no randomness");
    read_lines(&caller);
    keep(arguments[1], &keys, session, &caller);
    if (caller.failed) die("some requests failed");
}
