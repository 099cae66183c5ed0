/* The least that a Majordomo broker can do for stock ends: one thread, epoll, ZMTP with the NULL mechanism, one service whatever it
 * is called, one request at a time for a worker, the worker that has waited longest first. No errors, no deadlines; a worker that
 * beats is answered with a beat. What a turn has for a connection is written at once. Speaks Majordomo 0.1.
 *
 * usage: raw_majordomo */
#include "peer.h"
#include "raw_loop.h"

#include <string.h>

enum { READY = 1, REQUEST, REPLY, HEARTBEAT };

/* Workers that wait; a ring. */
static uint32_t waiting[CONNECTIONS_MOST];
static size_t waiting_first = 0, waiting_count = 0;
/* Requests that wait: the client's slot, the size of the body, and the body itself. */
static struct buffer requests;
static char service[256];
static size_t service_size = 0;

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
    if (peer->stream.fd < 0) return;
    for (size_t count; (count = stream_next(&peer->stream, frames)) > 0;) take_message(peer, frames, count);
    if (peer->stream.out.begin < peer->stream.out.end) mark(peer);
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc != 1) die_because("usage", "raw_majordomo");
    raw_loop(stream_accept_zmtp, take);
}
