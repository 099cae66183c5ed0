/* The least that a broker can do, for comparison: one thread, epoll, and no protocol but frames. Connections say by one byte
 * whether they are clients or workers. A client's frame gets the client's slot in its first four bytes and goes to the workers
 * in turn; a worker's frame goes back to the slot's client. What a turn has for a connection is written at once.
 *
 * usage: raw_broker */
#include "peer.h"
#include "raw_loop.h"

#include <string.h>

enum { HEADER_BYTES = 2 };

static uint32_t workers[CONNECTIONS_MOST];
static size_t worker_count = 0, next_worker = 0;

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
    if (peer->stream.fd < 0) {
        if (peer->role == RAW_WORKER) worker_count = 0;
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
    raw_loop(stream_accept, take);
}
