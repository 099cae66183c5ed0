#define _GNU_SOURCE
#include "raw_loop.h"
#include "peer.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

struct peer *peers[CONNECTIONS_MOST];
size_t peer_count = 0;

static uint32_t marked[CONNECTIONS_MOST];
static size_t marked_count = 0;
static int poller;

void mark(struct peer *peer) {
    if (peer->marked) return;
    peer->marked = true;
    marked[marked_count++] = peer->slot;
}

static void take_connections(int listener, void (*begin)(struct stream *stream, int fd)) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        if (peer_count == CONNECTIONS_MOST) die_because("broker", "too many connections");
        struct peer *peer = calloc(1, sizeof *peer);
        if (peer == NULL) die("calloc");
        peer->slot = (uint32_t)peer_count;
        peers[peer_count++] = peer;
        begin(&peer->stream, fd);
        stream_watch(&peer->stream, poller, peer);
    }
    if (errno != EAGAIN) die("accept");
}

static void read_from(struct peer *peer, void (*take)(struct peer *peer)) {
    if (!stream_read(&peer->stream)) {
        close(peer->stream.fd);
        peer->stream.fd = -1;
    }
    take(peer);
}

void raw_loop(void (*begin)(struct stream *stream, int fd), void (*take)(struct peer *peer)) {
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
                take_connections(listener, begin);
                continue;
            }
            if (ready[i].events & EPOLLOUT) mark(peer);
            if (ready[i].events & ~(uint32_t)EPOLLOUT) read_from(peer, take);
        }
        for (size_t i = 0; i < marked_count; i++) {
            struct peer *peer = peers[marked[i]];
            peer->marked = false;
            if (peer->stream.fd >= 0) stream_flush(&peer->stream, poller, peer);
        }
        marked_count = 0;
    }
}
