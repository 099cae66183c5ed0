/* Connections with buffers for programs with one thread and epoll: bytes in, bytes out, and messages of ZMTP 3.1 frames
 * in them. All that a turn writes leaves together. */
#ifndef STREAM_H
#define STREAM_H

#include "mdp.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer {
    unsigned char *data;
    size_t begin, end, space;
};

/* Space for so many bytes behind the end. */
unsigned char *buffer_reserve(struct buffer *buffer, size_t size);
void buffer_append(struct buffer *buffer, const void *data, size_t size);

struct stream {
    int fd;
    bool greeted, ready; /* ZMTP's handshake; ready means that messages may be sent */
    bool awaits_space;    /* epoll reports when more can be written */
    struct buffer in, out;
};

/* Connections of a program, and what they wait for. */
int poller_open(void);
void stream_watch(struct stream *stream, int poller, void *tag);

/* Connects to a port of the loopback, without a handshake. */
void stream_connect(struct stream *stream, uint16_t port);
/* A connection that was accepted. */
void stream_accept(struct stream *stream, int fd);
/* The same with ZMTP's: greeting and READY of a DEALER with the NULL mechanism leave at once. */
void stream_connect_zmtp(struct stream *stream, uint16_t port);
/* The same for a connection that was accepted: a ROUTER's. */
void stream_accept_zmtp(struct stream *stream, int fd);

/* Takes what has arrived, up to a bound. False: the other side has closed. */
bool stream_read(struct stream *stream);
/* Writes what it can; the rest when there is space. */
void stream_flush(struct stream *stream, int poller, void *tag);

/* Appends a short or long frame. */
void stream_put(struct stream *stream, const void *data, size_t size, bool more);

/* For protocols of lines: appends text, and finds the next line that was read whole, from an byte on; NULL if there is none. It lasts
 * until the next call; `after` is where the bytes behind it begin. */
void stream_say(struct stream *stream, const char *text);
const char *stream_line(const struct stream *stream, size_t from, size_t *after);

enum { MESSAGE_FRAMES_MOST = 16 };

/* The next whole message that has been read, and how many frames it has; 0 if there is none. Greeting and commands are seen
 * to in passing. The frames last until the next call. */
size_t stream_next(struct stream *stream, struct frame *frames);

#endif
