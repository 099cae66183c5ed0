/* The least that a broker can do, for comparison: one thread, epoll, and no protocol but frames. Connections say by one octet
 * whether they are clients or workers. A client's frame gets the client's slot in its first four octets and goes to the workers
 * in turn; a worker's frame goes back to the slot's client. What a turn has for a connection is written at once.
 *
 * usage: raw_broker */
#define _GNU_SOURCE
#include "load.h"
#include "peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEADER_BYTES = 2 };

struct peer {
    struct stream stream;
    uint32_t slot;
    char role; /* 0: not known yet */
    bool marked; /* has something to be written in this turn */
};

static struct peer *peers[CONNECTIONS_MOST];
static uint32_t workers[CONNECTIONS_MOST], marked[CONNECTIONS_MOST];
static size_t peer_count = 0, worker_count = 0, marked_count = 0, next_worker = 0;
static int poller;

static void mark(struct peer *peer) {
    if (peer->marked) return;
    peer->marked = true;
    marked[marked_count++] = peer->slot;
}

static void take_connections(int listener) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;) {
        if (peer_count == CONNECTIONS_MOST) die_because("raw_broker", "too many connections");
        struct peer *peer = calloc(1, sizeof *peer);
        if (peer == NULL) die("calloc");
        peer->slot = (uint32_t)peer_count;
        peers[peer_count++] = peer;
        stream_accept(&peer->stream, fd);
        stream_watch(&peer->stream, poller, peer);
    }
    if (errno != EAGAIN) die("accept");
}

/* All frames of a client go to one worker: that of this turn. */
static void route_requests(struct peer *peer) {
    struct buffer *in = &peer->stream.in;
    if (worker_count == 0) return;
    struct peer *worker = peers[workers[next_worker++ % worker_count]];
    size_t at = in->begin;
    while (in->end - at >= HEADER_BYTES && in->end - at >= (size_t)HEADER_BYTES + in->data[at + 1]) {
        memcpy(in->data + at + HEADER_BYTES, &peer->slot, SLOT_BYTES);
        at += HEADER_BYTES + in->data[at + 1];
    }
    buffer_append(&worker->stream.out, in->data + in->begin, at - in->begin);
    in->begin = at;
    mark(worker);
}

/* Frames in a row for the same client go together. */
static void route_replies(struct peer *peer) {
    struct buffer *in = &peer->stream.in;
    while (in->begin < in->end) {
        size_t at = in->begin;
        uint32_t slot = UINT32_MAX;
        while (in->end - at >= HEADER_BYTES && in->end - at >= (size_t)HEADER_BYTES + in->data[at + 1]) {
            uint32_t here;
            memcpy(&here, in->data + at + HEADER_BYTES, SLOT_BYTES);
            if (at > in->begin && here != slot) break;
            slot = here;
            at += HEADER_BYTES + in->data[at + 1];
        }
        if (at == in->begin) return;
        if (slot < peer_count && peers[slot]->stream.fd >= 0) {
            buffer_append(&peers[slot]->stream.out, in->data + in->begin, at - in->begin);
            mark(peers[slot]);
        }
        in->begin = at;
    }
}

static void take(struct peer *peer) {
    struct buffer *in = &peer->stream.in;
    if (!stream_read(&peer->stream)) {
        if (peer->role == RAW_WORKER) worker_count = 0;
        close(peer->stream.fd);
        peer->stream.fd = -1;
        return;
    }
    if (peer->role == 0 && in->end > in->begin) {
        peer->role = (char)in->data[in->begin++];
        if (peer->role == RAW_WORKER) workers[worker_count++] = peer->slot;
    }
    if (peer->role == RAW_CLIENT) route_requests(peer);
    else if (peer->role == RAW_WORKER) route_replies(peer);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc != 1) die_because("usage", "raw_broker");
    prepare_process();
    allow_many_descriptors();
    int listener = listen_and_announce(NULL);
    struct stream listening;
    stream_accept(&listening, listener);
    poller = poller_open();
    stream_watch(&listening, poller, NULL);
    struct epoll_event ready[EVENTS_AT_ONCE];
    for (;;) {
        int events = epoll_wait(poller, ready, EVENTS_AT_ONCE, -1);
        if (events < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < events; i++) {
            struct peer *peer = ready[i].data.ptr;
            if (peer == NULL) {
                take_connections(listener);
                continue;
            }
            if (ready[i].events & EPOLLOUT) mark(peer);
            if (ready[i].events & ~(uint32_t)EPOLLOUT) take(peer);
        }
        for (size_t i = 0; i < marked_count; i++) {
            struct peer *peer = peers[marked[i]];
            peer->marked = false;
            if (peer->stream.fd >= 0) stream_flush(&peer->stream, poller, peer);
        }
        marked_count = 0;
    }
}
