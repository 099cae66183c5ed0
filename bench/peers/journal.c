#define _GNU_SOURCE
#include "journal.h"
#include "peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Redis: XADD, and the record's name as a bulk string ---- */

static void redis_open(struct stream *stream, size_t client) {
    (void)client;
    stream_say(stream, "*1\r\n$4\r\nPING\r\n");
}

static void redis_add(struct stream *stream, size_t client, uint32_t number, const void *body, size_t size) {
    char head[128];
    (void)client, (void)number;
    snprintf(head, sizeof head, "*5\r\n$4\r\nXADD\r\n$7\r\njournal\r\n$1\r\n*\r\n$1\r\nd\r\n$%zu\r\n", size);
    stream_say(stream, head);
    buffer_append(&stream->out, body, size);
    stream_say(stream, "\r\n");
}

static bool redis_confirmed(struct stream *stream) {
    size_t after;
    const char *text = stream_line(stream, stream->in.begin, &after);
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
    stream_say(stream, text);
    if (client > 0) return;
    snprintf(text, sizeof text, "PUB $JS.API.STREAM.CREATE.JOURNAL _INBOX.0.create %zu\r\n%s\r\n", sizeof config - 1, config);
    stream_say(stream, text);
}

static void nats_add(struct stream *stream, size_t client, uint32_t number, const void *body, size_t size) {
    char head[128];
    snprintf(head, sizeof head, "PUB journal.%zu _INBOX.%zu.%u %zu\r\n", client, client, number, size);
    stream_say(stream, head);
    buffer_append(&stream->out, body, size);
    stream_say(stream, "\r\n");
}

/* A confirmation is a message with the record's place, or the PONG at the opening. */
static bool nats_confirmed(struct stream *stream) {
    size_t after;
    const char *text;
    while ((text = stream_line(stream, stream->in.begin, &after)) != NULL) {
        if (strncmp(text, "MSG ", 4) == 0) {
            size_t size = strtoul(strrchr(text, ' ') + 1, NULL, 10) + 2;
            if (stream->in.end - after < size) return false;
            if (memmem(stream->in.data + after, size, "\"error\"", 7) != NULL) die_because("nats", "refused a record");
            stream->in.begin = after + size;
            return true;
        }
        stream->in.begin = after;
        if (strcmp(text, "PONG") == 0) return true;
        if (strcmp(text, "PING") == 0) stream_say(stream, "PONG\r\n");
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
