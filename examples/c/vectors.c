// vectors FILE checks the records against testing/vectors/numbered.txt: lines of KIND BLOCK ATTACHED = WHAT IT SAYS.
#include "towpath.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Appends what hex, or a byte and how many of it there are, stands for.
static void put_hex(buffer *to, const char *hex) {
    unsigned byte, count;
    if (strchr(hex, '*')) {
        if (sscanf(hex, "%2x*%u", &byte, &count) != 2) die("%s is no vector", hex);
        while (count-- > 0) put(to, &(uint8_t){byte}, 1);
        return;
    }
    for (; sscanf(hex, "%2x", &byte) == 1; hex += 2) put(to, &(uint8_t){byte}, 1);
}

static void print(buffer *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
#include <stdarg.h>
static void print(buffer *to, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    put(to, text, vsnprintf(text, sizeof text, format, arguments));
    va_end(arguments);
}

static void print_hex(buffer *to, const uint8_t *bytes, size_t size) {
    bool same = size > 100;
    for (size_t n = 0; same && n < size; n++) same = bytes[n] == bytes[0];
    for (size_t n = 0; n < (same ? 1 : size); n++) print(to, "%02x", bytes[n]);
    if (same) print(to, "*%zu", size);
}

static void print_body(buffer *to, const record *record) {
    if (!(record->flags & SEVERAL)) {
        print_hex(to, record->body, record->body_size);
        return;
    }
    const uint8_t *rest = record->body, *frame;
    size_t size;
    for (bool first = true; next_frame(&rest, record->body + record->body_size, &frame, &size) > 0; first = false) {
        if (!first) print(to, ",");
        print_hex(to, frame, size);
    }
}

static void print_record(buffer *to, const record *r) {
    if (r->kind == WELCOME) print(to, "welcome %" PRIu64 " %u %" PRIu64 " %d", r->number, r->count, r->bytes, r->journal);
    if (r->kind == WORKER_WELCOME) print(to, "welcome %" PRIu64, r->number);
    if (r->kind == ACCEPTED) print(to, "accepted %" PRIu64 " %u", r->number, r->count);
    if (r->kind == LEAVE) print(to, "leave");
    if (r->kind == REPLY) {
        print(to, "reply %" PRIu64 " %u ", r->number, r->status);
        if (r->flags & PARTIAL) print(to, "%u ", r->part);
        else print(to, "- ");
        print_body(to, r);
    }
    if (r->kind == REFUSED) {
        print(to, "refused %" PRIu64 " %u %u ", r->number, r->status, r->millis);
        print_hex(to, r->body, r->body_size);
    }
    if (r->kind == WORKER_REQUEST) print(to, "request ");
    if (r->kind == WORKER_CANCEL) print(to, "cancel ");
    if (r->kind == IDENTITY) print(to, "identity ");
    if (r->token) print_hex(to, r->token, TOKEN_BYTES);
    if (r->kind == WORKER_REQUEST) {
        print(to, " %u %u ", r->attempt, r->millis);
        print_body(to, r);
    }
    if (r->kind == IDENTITY) {
        print(to, " ");
        print_hex(to, r->id, TOKEN_BYTES);
    }
}

static void decode(buffer *said, const buffer *block, const buffer *attached, bool for_worker) {
    reader reader = {block->data, block->data + block->size, attached ? attached->data : NULL, attached ? attached->size : 0, for_worker};
    record record;
    int found;
    while ((found = next_record(&reader, &record)) > 0) {
        if (said->size) print(said, "; ");
        print_record(said, &record);
    }
    if (found < 0) said->size = 0, print(said, "malformed");
}

// Makes the body of these frames, and its flags.
static uint8_t make_body(buffer *body, char *frames) {
    if (!strchr(frames, ',')) {
        put_hex(body, frames);
        return 0;
    }
    for (char *frame; (frame = strsep(&frames, ","));) {
        buffer bytes = {0};
        put_hex(&bytes, frame);
        for (int shift = 24; shift >= 0; shift -= 8) put(body, &(uint8_t){bytes.size >> shift}, 1);
        put(body, bytes.data, bytes.size);
        free(bytes.data);
    }
    return SEVERAL;
}

static bool encode(buffer *block, buffer *body, char *says) {
    char *w[8] = {0};
    for (int n = 0; n < 8 && (w[n] = strsep(&says, " ")); n++) {}
    buffer bytes = {0};
    uint8_t flags = 0;
    uint64_t number = strtoull(w[1] ? w[1] : "", NULL, 10);
    bool attached = false;
    if (strcmp(w[0], "confirm") == 0) put_confirm(block, number, atoi(w[2]));
    if (strcmp(w[0], "cancel") == 0) put_cancel(block, number);
    if (strcmp(w[0], "credit") == 0) put_credit(block, number);
    if (strcmp(w[0], "leaving") == 0) put_leaving(block);
    if (strcmp(w[0], "ready") == 0) put_hex(&bytes, w[2]), put(&bytes, "", 1), put_ready(block, number, (char *)bytes.data);
    if (strcmp(w[0], "hello") == 0) put_hex(&bytes, w[1]), put_hello(block, bytes.data, atoi(w[2]));
    if (strcmp(w[0], "return") == 0) {
        put_hex(&bytes, w[1]), put_hex(&bytes, w[2]), put(&bytes, "", 1);
        put_return(block, bytes.data, (char *)bytes.data + TOKEN_BYTES);
    }
    if (strcmp(w[0], "request") == 0) {
        flags = make_body(body, w[6]) | (*w[3] == '1' ? VOLATILE : 0) | (*w[4] == '1' ? RESENT : 0);
        put_hex(&bytes, w[5]), put(&bytes, "", 1);
        attached = put_request(block, number, (char *)bytes.data, atoi(w[2]), flags, body->data, body->size);
    }
    if (strcmp(w[0], "reply") == 0) {
        flags = make_body(body, w[4]);
        put_hex(&bytes, w[1]);
        uint32_t part = atoi(w[3]);
        attached = put_reply(block, bytes.data, atoi(w[2]), *w[3] == '-' ? NULL : &part, flags, body->data, body->size);
    }
    free(bytes.data);
    return attached;
}

static bool same(const buffer *a, const buffer *b) { return a->size == b->size && memcmp(a->data, b->data, a->size) == 0; }

int main(int count, char **arguments) {
    FILE *file = count == 2 ? fopen(arguments[1], "r") : NULL;
    if (!file) die("usage: vectors FILE");
    static char line[1 << 16], kind[16], block_hex[1 << 16], attached_hex[1 << 10];
    int vectors = 0, wrong = 0;
    for (; fgets(line, sizeof line, file); vectors++) {
        line[strcspn(line, "\n")] = 0;
        char *says = strstr(line, " = ");
        if (!says || sscanf(line, "%15s %65535s %1023s", kind, block_hex, attached_hex) != 3) die("%s is no vector", line);
        says += 3;
        buffer block = {0}, attached = {0}, got = {0}, body = {0};
        // Never NULL, even if they are empty.
        put(&block, "", 1), block.size = 0, put(&attached, "", 1), attached.size = 0, put(&got, "", 1), got.size = 0, put(&body, "", 1), body.size = 0;
        put_hex(&block, block_hex);
        put_hex(&attached, attached_hex);
        bool has_attached = strcmp(attached_hex, "-") != 0, right;
        if (strncmp(kind, "to-", 3) == 0) {
            decode(&got, &block, has_attached ? &attached : NULL, strcmp(kind, "to-worker") == 0);
            right = got.size == strlen(says) && memcmp(got.data, says, got.size) == 0;
        } else {
            right = encode(&got, &body, says) == has_attached && same(&got, &block) && (!has_attached || same(&body, &attached));
        }
        if (!right) wrong++, fprintf(stderr, "%s: %.*s\n", line, (int)got.size, (char *)got.data);
        free(block.data), free(attached.data), free(got.data), free(body.data);
    }
    if (vectors < 100 || wrong) die("%d of %d vectors are wrong", wrong, vectors);
    printf("%d vectors\n", vectors);
}
