#define _GNU_SOURCE
#include "stream.h"
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

enum { LINE_MOST = 4096, READ_BYTES = 256 << 10, SPACE_AT_FIRST = 16 << 10 };
enum { FLAG_MORE = 1, FLAG_LONG = 2, FLAG_COMMAND = 4, GREETING_BYTES = 64, SHORT_HEADER = 2, LONG_HEADER = 9, SHORT_MOST = 255 };

unsigned char *buffer_reserve(struct buffer *buffer, size_t size) {
    if (buffer->space - buffer->end >= size) return buffer->data + buffer->end;
    size_t kept = buffer->end - buffer->begin;
    if (buffer->begin > 0 && buffer->begin >= kept) {
        memcpy(buffer->data, buffer->data + buffer->begin, kept);
        buffer->begin = 0;
        buffer->end = kept;
    }
    while (buffer->space - buffer->end < size) {
        buffer->space = buffer->space == 0 ? SPACE_AT_FIRST : buffer->space * 2;
        buffer->data = realloc(buffer->data, buffer->space);
        if (buffer->data == NULL) die("realloc");
    }
    return buffer->data + buffer->end;
}

void buffer_append(struct buffer *buffer, const void *data, size_t size) {
    memcpy(buffer_reserve(buffer, size), data, size);
    buffer->end += size;
}

int poller_open(void) {
    int poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0) die("epoll_create1");
    return poller;
}

static void control(struct stream *stream, int poller, int how, uint32_t events, void *tag) {
    struct epoll_event event = {.events = events, .data.ptr = tag};
    if (epoll_ctl(poller, how, stream->fd, &event) != 0) die("epoll_ctl");
}

void stream_watch(struct stream *stream, int poller, void *tag) { control(stream, poller, EPOLL_CTL_ADD, EPOLLIN, tag); }

void stream_accept(struct stream *stream, int fd) {
    int on = 1;
    *stream = (struct stream){.fd = fd};
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (fcntl(fd, F_SETFL, O_NONBLOCK) != 0) die("fcntl");
}

void stream_connect(struct stream *stream, uint16_t port) { stream_accept(stream, connect_loopback(port)); }

/* What either side says first, at once: ZMTP's greeting with the NULL mechanism, and READY. */
static void shake_hands(int fd, const void *ready, size_t size) {
    static const unsigned char greeting[GREETING_BYTES] = {[0] = 0xff, [9] = 0x7f, [10] = 3, [11] = 1, [12] = 'N', 'U', 'L', 'L'};
    write_all(fd, greeting, sizeof greeting, 0);
    write_all(fd, ready, size, 0);
}

/* The literals' own NUL is the last byte of the Identity's length. */
void stream_connect_zmtp(struct stream *stream, uint16_t port) {
    static const unsigned char ready[] = "\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06" "DEALER\x08Identity\0\0\0";
    int fd = connect_loopback(port);
    shake_hands(fd, ready, sizeof ready);
    stream_accept(stream, fd);
}

void stream_accept_zmtp(struct stream *stream, int fd) {
    static const unsigned char ready[] = "\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06" "ROUTER\x08Identity\0\0\0";
    shake_hands(fd, ready, sizeof ready);
    stream_accept(stream, fd);
}

bool stream_read(struct stream *stream) {
    struct buffer *in = &stream->in;
    if (in->begin == in->end) in->begin = in->end = 0;
    size_t space = in->space - in->end > READ_BYTES / 4 ? in->space - in->end : READ_BYTES;
    ssize_t got = recv(stream->fd, buffer_reserve(in, space), space, 0);
    if (got < 0) {
        if (errno == EAGAIN || errno == EINTR) return true;
        if (errno == ECONNRESET) return false;
        die("recv");
    }
    in->end += (size_t)got;
    return got > 0;
}

void stream_flush(struct stream *stream, int poller, void *tag) {
    struct buffer *out = &stream->out;
    while (out->begin < out->end) {
        ssize_t sent = send(stream->fd, out->data + out->begin, out->end - out->begin, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno == EAGAIN) break;
        /* A peer that has gone is noticed where it is read. */
        out->begin = sent < 0 ? out->end : out->begin + (size_t)sent;
    }
    if (out->begin == out->end) out->begin = out->end = 0;
    bool awaits_space = out->begin < out->end;
    if (awaits_space != stream->awaits_space) {
        stream->awaits_space = awaits_space;
        control(stream, poller, EPOLL_CTL_MOD, EPOLLIN | (awaits_space ? EPOLLOUT : 0), tag);
    }
}

void stream_say(struct stream *stream, const char *text) { buffer_append(&stream->out, text, strlen(text)); }

const char *stream_line(const struct stream *stream, size_t from, size_t *after) {
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

static void put(struct stream *stream, int flags, const void *data, size_t size) {
    unsigned char *to = buffer_reserve(&stream->out, LONG_HEADER + size);
    size_t header = size > SHORT_MOST ? LONG_HEADER : SHORT_HEADER;
    to[0] = (unsigned char)(flags | (header == LONG_HEADER ? FLAG_LONG : 0));
    if (header == LONG_HEADER) put_u64(to + 1, size);
    else to[1] = (unsigned char)size;
    memcpy(to + header, data, size);
    stream->out.end += header + size;
}

void stream_put(struct stream *stream, const void *data, size_t size, bool more) { put(stream, more ? FLAG_MORE : 0, data, size); }

static void command(struct stream *stream, const unsigned char *body, size_t size) {
    if (size >= 6 && memcmp(body, "\x05READY", 6) == 0) {
        stream->ready = true;
    } else if (size >= 7 && memcmp(body, "\x04PING", 5) == 0) {
        unsigned char pong[SHORT_MOST] = "\x04PONG";
        size_t context = size - 7 < 16 ? size - 7 : 16;
        memcpy(pong + 5, body + 7, context);
        put(stream, FLAG_COMMAND, pong, 5 + context);
    } else if (size >= 6 && memcmp(body, "\x05" "ERROR", 6) == 0) {
        die_because("server", "refused the connection");
    }
}

/* Reads a frame's header at `at`. False: the frame isn't whole. */
static bool whole_frame(const unsigned char *at, size_t have, struct frame *frame) {
    if (have < SHORT_HEADER) return false;
    size_t header = at[0] & FLAG_LONG ? LONG_HEADER : SHORT_HEADER;
    if (have < header) return false;
    size_t size = header == LONG_HEADER ? take_u64(at + 1) : at[1];
    *frame = (struct frame){at + header, size};
    return have - header >= size;
}

size_t stream_next(struct stream *stream, struct frame *frames) {
    struct buffer *in = &stream->in;
    if (!stream->greeted) {
        if (in->end - in->begin < GREETING_BYTES) return 0;
        const unsigned char *greeting = in->data + in->begin;
        if (greeting[0] != 0xff || greeting[9] != 0x7f || greeting[10] != 3) die_because("server", "does not speak ZMTP 3");
        in->begin += GREETING_BYTES;
        stream->greeted = true;
    }
    size_t at = in->begin, count = 0;
    struct frame frame;
    while (whole_frame(in->data + at, in->end - at, &frame)) {
        unsigned char flags = in->data[at];
        at = (size_t)((const unsigned char *)frame.data + frame.size - in->data);
        if (flags & FLAG_COMMAND) {
            command(stream, frame.data, frame.size);
            if (count == 0) in->begin = at;
            continue;
        }
        if (count == MESSAGE_FRAMES_MOST) die_because("server", "sent a message of too many frames");
        frames[count++] = frame;
        if (flags & FLAG_MORE) continue;
        in->begin = at;
        return count;
    }
    return 0;
}
