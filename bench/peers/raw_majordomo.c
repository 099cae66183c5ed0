/* The least that a Majordomo broker can do for stock ends: one thread, epoll, ZMTP with the NULL mechanism, one service whatever it
 * is called, one request at a time for a worker, the worker that has waited longest first. No errors, no deadlines; a worker that
 * beats is answered with a beat. What a turn has for a connection is written at once. Speaks Majordomo 0.1.
 *
 * usage: raw_majordomo */
#define _GNU_SOURCE
#include "load.h"
#include "peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READY = 1, REQUEST, REPLY, HEARTBEAT };

struct peer {
    struct stream stream;
    uint32_t slot;
    bool marked; /* has something to be written in this turn */
};

static struct peer *peers[CONNECTIONS_MOST];
static uint32_t marked[CONNECTIONS_MOST];
static size_t peer_count = 0, marked_count = 0;
/* Workers that wait; a ring. */
static uint32_t waiting[CONNECTIONS_MOST];
static size_t waiting_first = 0, waiting_count = 0;
/* Requests that wait: the client's slot, and the size of the body and the body itself. */
static struct buffer requests;
static char service[256];
static size_t service_size = 0;
static int poller;

static void mark(struct peer *peer) {
    if (peer->marked) return;
    peer->marked = true;
    marked[marked_count++] = peer->slot;
}

static void take_connections(int listener) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
        if (peer_count == CONNECTIONS_MOST) die_because("raw_majordomo", "too many connections");
        struct peer *peer = calloc(1, sizeof *peer);
        if (peer == NULL) die("calloc");
        peer->slot = (uint32_t)peer_count;
        peers[peer_count++] = peer;
        stream_accept_zmtp(&peer->stream, fd);
        stream_watch(&peer->stream, poller, peer);
    }
    if (errno != EAGAIN) die("accept");
}

static void send_request(struct peer *worker, uint32_t client, const void *body, size_t size) {
    static const char command = REQUEST;
    struct stream *to = &worker->stream;
    stream_put(to, "", 0, true);
    stream_put(to, "MDPW01", 6, true);
    stream_put(to, &command, 1, true);
    stream_put(to, &client, sizeof client, true);
    stream_put(to, "", 0, true);
    stream_put(to, body, size, false);
    mark(worker);
}

static struct peer *waiting_worker(void) {
    if (waiting_count == 0) return NULL;
    struct peer *worker = peers[waiting[waiting_first]];
    waiting_first = (waiting_first + 1) % CONNECTIONS_MOST;
    waiting_count--;
    return worker;
}

static void take_request(struct peer *client, const struct frame *body, const struct frame *name) {
    service_size = name->size < sizeof service ? name->size : sizeof service;
    memcpy(service, name->data, service_size);
    struct peer *worker = waiting_worker();
    if (worker != NULL) {
        send_request(worker, client->slot, body->data, body->size);
        return;
    }
    uint32_t size = (uint32_t)body->size;
    buffer_append(&requests, &client->slot, sizeof client->slot);
    buffer_append(&requests, &size, sizeof size);
    buffer_append(&requests, body->data, size);
}

static void give_work(struct peer *worker) {
    if (requests.begin == requests.end) {
        waiting[(waiting_first + waiting_count++) % CONNECTIONS_MOST] = worker->slot;
        return;
    }
    uint32_t client, size;
    memcpy(&client, requests.data + requests.begin, sizeof client);
    memcpy(&size, requests.data + requests.begin + sizeof client, sizeof size);
    const unsigned char *body = requests.data + requests.begin + sizeof client + sizeof size;
    send_request(worker, client, body, size);
    requests.begin += sizeof client + sizeof size + size;
    if (requests.begin == requests.end) requests.begin = requests.end = 0;
}

static void take_reply(const struct frame *address, const struct frame *body) {
    uint32_t slot;
    if (address->size != sizeof slot) die_because("worker", "replied to another address");
    memcpy(&slot, address->data, sizeof slot);
    struct stream *to = &peers[slot]->stream;
    if (to->fd < 0) return;
    stream_put(to, "", 0, true);
    stream_put(to, "MDPC01", 6, true);
    stream_put(to, service, service_size, true);
    stream_put(to, body->data, body->size, false);
    mark(peers[slot]);
}

static void take_message(struct peer *peer, const struct frame *frames, size_t count) {
    if (count == 4 && memcmp(frames[1].data, "MDPC01", 6) == 0) {
        take_request(peer, &frames[3], &frames[2]);
        return;
    }
    if (count < 3 || memcmp(frames[1].data, "MDPW01", 6) != 0) die_because("raw_majordomo", "not a message in this dialect");
    char command = *(const char *)frames[2].data;
    if (command == REPLY && count == 6) take_reply(&frames[3], &frames[5]);
    if (command == REPLY || command == READY) give_work(peer);
    if (command != HEARTBEAT) return;
    stream_put(&peer->stream, "", 0, true);
    stream_put(&peer->stream, "MDPW01", 6, true);
    stream_put(&peer->stream, &command, 1, false);
    mark(peer);
}

static void take(struct peer *peer) {
    struct frame frames[MESSAGE_FRAMES_MOST];
    if (!stream_read(&peer->stream)) {
        close(peer->stream.fd);
        peer->stream.fd = -1;
        return;
    }
    for (size_t count; (count = stream_next(&peer->stream, frames)) > 0;) take_message(peer, frames, count);
    if (peer->stream.out.begin < peer->stream.out.end) mark(peer);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc != 1) die_because("usage", "raw_majordomo");
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
