#define _GNU_SOURCE
#include "journal.h"
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MOST = 4096 };

/* The next line that is whole, as text; NULL if there is none. `after` is where the octets behind it begin. */
static const char *line(const struct stream *stream, size_t from, size_t *after) {
    static char text[LINE_MOST];
    const struct buffer *in = &stream->in;
    const unsigned char *begin = in->data + from, *end;
    if (in->data == NULL || (end = memmem(begin, in->end - from, "\r\n", 2)) == NULL) return NULL;
    size_t size = (size_t)(end - begin) < LINE_MOST - 1 ? (size_t)(end - begin) : LINE_MOST - 1;
    memcpy(text, begin, size);
    text[size] = '\0';
    *after = from + (size_t)(end - begin) + 2;
    return text;
}

static void say(struct stream *stream, const char *text) { buffer_append(&stream->out, text, strlen(text)); }

/* ---- Redis: XADD, and the record's name as a bulk string ---- */

static void redis_open(struct stream *stream, size_t client) {
    (void)client;
    say(stream, "*1\r\n$4\r\nPING\r\n");
}

static void redis_add(struct stream *stream, size_t client, uint32_t number, const void *body, size_t size) {
    char head[128];
    (void)client, (void)number;
    snprintf(head, sizeof head, "*5\r\n$4\r\nXADD\r\n$7\r\njournal\r\n$1\r\n*\r\n$1\r\nd\r\n$%zu\r\n", size);
    say(stream, head);
    buffer_append(&stream->out, body, size);
    say(stream, "\r\n");
}

static bool redis_confirmed(struct stream *stream) {
    size_t after;
    const char *text = line(stream, stream->in.begin, &after);
    if (text == NULL) return false;
    if (text[0] == '$') {
        size_t size = strtoul(text + 1, NULL, 10) + 2;
        if (stream->in.end - after < size) return false;
        after += size;
    } else if (text[0] != '+') {
        die_because("redis", text);
    }
    stream->in.begin = after;
    return true;
}

/* ---- NATS: a stream on disk, publishing with a subject for the confirmation ---- */

static void nats_open(struct stream *stream, size_t client) {
    static const char config[] = "{\"name\":\"JOURNAL\",\"subjects\":[\"journal.>\"],\"storage\":\"file\",\"retention\":\"limits\"}";
    char text[512];
    snprintf(text, sizeof text, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true}\r\nSUB _INBOX.%zu.* 1\r\nPING\r\n", client);
    say(stream, text);
    if (client > 0) return;
    snprintf(text, sizeof text, "PUB $JS.API.STREAM.CREATE.JOURNAL _INBOX.0.create %zu\r\n%s\r\n", sizeof config - 1, config);
    say(stream, text);
}

static void nats_add(struct stream *stream, size_t client, uint32_t number, const void *body, size_t size) {
    char head[128];
    snprintf(head, sizeof head, "PUB journal.%zu _INBOX.%zu.%u %zu\r\n", client, client, number, size);
    say(stream, head);
    buffer_append(&stream->out, body, size);
    say(stream, "\r\n");
}

/* A confirmation is a message that tells the record's place, or the PONG at the opening. */
static bool nats_confirmed(struct stream *stream) {
    size_t after;
    const char *text;
    while ((text = line(stream, stream->in.begin, &after)) != NULL) {
        if (strncmp(text, "MSG ", 4) == 0) {
            size_t size = strtoul(strrchr(text, ' ') + 1, NULL, 10) + 2;
            if (stream->in.end - after < size) return false;
            if (memmem(stream->in.data + after, size, "\"error\"", 7) != NULL) die_because("nats", "refused a record");
            stream->in.begin = after + size;
            return true;
        }
        stream->in.begin = after;
        if (strcmp(text, "PONG") == 0) return true;
        if (strcmp(text, "PING") == 0) say(stream, "PONG\r\n");
        else if (strncmp(text, "INFO ", 5) != 0 && strcmp(text, "+OK") != 0) die_because("nats", text);
    }
    return false;
}

const struct store *store_named(const char *name) {
    static const struct store known[] = {
        {"redis", redis_open, 1, 1, redis_add, redis_confirmed},
        {"nats", nats_open, 2, 1, nats_add, nats_confirmed},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0) return &known[i];
    return NULL;
}
