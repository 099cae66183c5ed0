#include "wire.h"
#include "peer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- raw_server's protocol ---- */

static void raw_open(int fd, struct answer *answer) {
    (void)fd;
    answer->ready = true;
    answer->head_wanted = RAW_HEADER_BYTES;
}

static size_t raw_request(const struct job *job, unsigned char *to) {
    put_u64(to, job->path == NULL ? 0 : parse_count(job->path, UINT32_MAX));
    put_u64(to + 8, job->size);
    return RAW_REQUEST_BYTES;
}

static enum head_means raw_understand(int fd, struct answer *answer) {
    (void)fd;
    answer->body = take_u64(answer->head);
    return HEAD_BODY;
}

/* ---- HTTP/1.1 ---- */

static void http_open(int fd, struct answer *answer) {
    (void)fd;
    answer->ready = true;
    answer->head_wanted = 4;
}

static size_t http_request(const struct job *job, unsigned char *to) {
    int size = snprintf((char *)to, REQUEST_MOST, "GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", job->path ? job->path : "");
    if (size >= REQUEST_MOST) die_because("request", "too long");
    return (size_t)size;
}

static enum head_means http_understand(int fd, struct answer *answer) {
    (void)fd;
    if (memcmp(answer->head + answer->head_size - 4, "\r\n\r\n", 4) != 0) {
        answer->head_wanted++;
        return HEAD_INCOMPLETE;
    }
    answer->head[answer->head_size - 1] = '\0';
    const char *text = (const char *)answer->head;
    const char *length = strstr(text, "Content-Length: ");
    if (strncmp(text, "HTTP/1.1 200 ", 13) != 0 || length == NULL) die_because("HTTP", text);
    answer->body = strtoull(length + strlen("Content-Length: "), NULL, 10);
    return HEAD_BODY;
}

/* ---- the plain dialect over ZMTP ---- */

enum { FLAG_MORE = 1, FLAG_LONG = 2, FLAG_COMMAND = 4, GREETING_BYTES = 64, SHORT_HEADER = 2, LONG_HEADER = 9 };

static void zmtp_open(int fd, struct answer *answer) {
    unsigned char greeting[GREETING_BYTES] = {[0] = 0xff, [9] = 0x7f, [10] = 3, [11] = 1, [12] = 'N', 'U', 'L', 'L'};
    write_all(fd, greeting, sizeof greeting, 0);
    answer->head_wanted = GREETING_BYTES;
}

static size_t append_frame(unsigned char *to, const char *body, bool more) {
    size_t size = strlen(body);
    if (size > 255) die_because("request", "a path of more than 255 bytes");
    to[0] = more ? FLAG_MORE : 0;
    to[1] = (unsigned char)size;
    memcpy(to + SHORT_HEADER, body, size);
    return SHORT_HEADER + size;
}

static size_t zmtp_request(const struct job *job, unsigned char *to) {
    char offset[24], size[24];
    snprintf(offset, sizeof offset, "%" PRIu64, job->offset);
    snprintf(size, sizeof size, "%" PRIu64, job->size);
    size_t at = append_frame(to, "fetch", true);
    if (job->path != NULL) at += append_frame(to + at, job->path, true);
    at += append_frame(to + at, offset, true);
    return at + append_frame(to + at, size, false);
}

static void send_ready(int fd) {
    static const unsigned char ready[] = "\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06" "DEALER\x08Identity\0\0\0";
    write_all(fd, ready, sizeof ready, 0); /* the literal's own NUL is the last byte of the Identity's length */
}

static void command(int fd, const unsigned char *body, size_t size) {
    if (size >= 7 && memcmp(body, "\x04PING", 5) == 0) {
        size_t context = size - 7;
        if (context > 16) die_because("PING", "its context is too long");
        unsigned char pong[SHORT_HEADER + 5 + 16] = {FLAG_COMMAND, (unsigned char)(5 + context), 4, 'P', 'O', 'N', 'G'};
        memcpy(pong + SHORT_HEADER + 5, body + 7, context);
        write_all(fd, pong, SHORT_HEADER + 5 + context, 0);
    } else if (size >= 6 && memcmp(body, "\x05" "ERROR", 6) == 0) {
        die_because("server", "refused the connection");
    }
}

static enum head_means zmtp_understand(int fd, struct answer *answer) {
    unsigned char *head = answer->head;
    if (!answer->greeted) {
        if (head[0] != 0xff || head[9] != 0x7f || head[10] != 3) die_because("server", "does not speak ZMTP 3");
        answer->greeted = true;
        send_ready(fd);
        return HEAD_HANDSHAKE;
    }
    size_t header = head[0] & FLAG_LONG ? LONG_HEADER : SHORT_HEADER;
    if (answer->head_size < header) {
        answer->head_wanted = header;
        return HEAD_INCOMPLETE;
    }
    uint64_t size = header == LONG_HEADER ? take_u64(head + 1) : head[1];
    if (!(head[0] & FLAG_COMMAND)) {
        if (head[0] & FLAG_MORE) die_because("server", "answered with an error");
        answer->body = size;
        return HEAD_BODY;
    }
    if (size > HEAD_MOST - header) die_because("server", "sent a command that is too long");
    if (answer->head_size < header + size) {
        answer->head_wanted = header + size;
        return HEAD_INCOMPLETE;
    }
    if (size >= 6 && memcmp(head + header, "\x05READY", 6) == 0) answer->ready = true;
    else command(fd, head + header, size);
    return HEAD_HANDSHAKE;
}

const struct protocol *protocol_named(const char *name) {
    static const struct protocol known[] = {
        {"raw", raw_open, raw_request, raw_understand, RAW_HEADER_BYTES},
        {"http", http_open, http_request, http_understand, 4},
        {"zmtp", zmtp_open, zmtp_request, zmtp_understand, SHORT_HEADER},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0) return &known[i];
    return NULL;
}
