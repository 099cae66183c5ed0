/* The client's side of three protocols, as little of each as a receiver needs that drops what it gets: the plain dialect of
 * the file protocol over ZMTP 3.1 (NULL, DEALER), HTTP/1.1, and raw_server's. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is asked for at once: a file or a piece of one. */
struct job {
    const char *path; /* NULL: the one file that is served. For the raw protocol a number. */
    uint64_t offset, size;
};

enum { HEAD_MOST = 2048, REQUEST_MOST = 512 };

/* What is known of the answer that is arriving. A head is collected until the protocol has understood it. */
struct answer {
    unsigned char head[HEAD_MOST];
    size_t head_size, head_wanted;
    uint64_t body; /* bytes of the body that are still to come */
    bool in_body;
    bool ready; /* the handshake is over; requests may be sent */
    bool greeted;
};

enum head_means { HEAD_INCOMPLETE, HEAD_HANDSHAKE, HEAD_BODY };

struct protocol {
    const char *name;
    /* Sends what opens a connection and says how much of the first head to collect. */
    void (*open)(int fd, struct answer *answer);
    /* Writes a request of at most REQUEST_MOST bytes. */
    size_t (*request)(const struct job *job, unsigned char *to);
    /* Looks at a head of `head_wanted` bytes: more of it is wanted, or it was part of the handshake, or a body follows. */
    enum head_means (*understand)(int fd, struct answer *answer);
    /* The bytes of a head to begin with, once the handshake is over. */
    size_t head_least;
};

/* NULL if there is none of this name. */
const struct protocol *protocol_named(const char *name);

#endif
