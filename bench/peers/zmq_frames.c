#include "zmq_frames.h"
#include "peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BACKLOG = 4096, ENDPOINT_MOST = 256 };

void die_zmq(const char *what) { die_because(what, zmq_strerror(zmq_errno())); }

void *open_socket(void *context, int type) {
    void *socket = zmq_socket(context, type);
    if (socket == NULL) die_zmq("zmq_socket");
    int none = 0, backlog = BACKLOG;
    zmq_setsockopt(socket, ZMQ_SNDHWM, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_RCVHWM, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(socket, ZMQ_BACKLOG, &backlog, sizeof backlog);
    return socket;
}

int bind_socket(void *socket, const char *endpoint) {
    if (zmq_bind(socket, endpoint) != 0) die_zmq(endpoint);
    char bound[ENDPOINT_MOST];
    size_t size = sizeof bound;
    if (zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, bound, &size) != 0) die_zmq("ZMQ_LAST_ENDPOINT");
    return atoi(strrchr(bound, ':') + 1);
}

static bool has_more(void *socket) {
    int more = 0;
    size_t size = sizeof more;
    if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0) die_zmq("ZMQ_RCVMORE");
    return more != 0;
}

static void drop_rest(void *socket) {
    while (has_more(socket)) {
        zmq_msg_t rest;
        zmq_msg_init(&rest);
        if (zmq_msg_recv(&rest, socket, 0) < 0) die_zmq("zmq_msg_recv");
        zmq_msg_close(&rest);
    }
}

bool receive_message(void *socket, struct message *message, int flags) {
    message->count = 0;
    for (;;) {
        zmq_msg_t *frame = &message->frames[message->count];
        zmq_msg_init(frame);
        int size;
        while ((size = zmq_msg_recv(frame, socket, flags)) < 0 && zmq_errno() == EINTR) {}
        if (size < 0) {
            if (zmq_errno() != EAGAIN) die_zmq("zmq_msg_recv");
            return false;
        }
        message->count++;
        if (!zmq_msg_more(frame)) return true;
        if (message->count == FRAMES_MOST) {
            drop_rest(socket);
            close_message(message);
            return true;
        }
    }
}

void close_message(struct message *message) {
    for (size_t i = 0; i < message->count; i++) zmq_msg_close(&message->frames[i]);
    message->count = 0;
}

void forward_frames(void *socket, struct message *message, size_t first) {
    for (size_t i = first; i < message->count; i++)
        if (zmq_msg_send(&message->frames[i], socket, i + 1 < message->count ? ZMQ_SNDMORE : 0) < 0) die_zmq("zmq_msg_send");
    for (size_t i = 0; i < first; i++) zmq_msg_close(&message->frames[i]);
    message->count = 0;
}

void send_frames(void *socket, const struct frame *frames, size_t count, bool more) {
    for (size_t i = 0; i < count; i++)
        if (zmq_send(socket, frames[i].data, frames[i].size, more || i + 1 < count ? ZMQ_SNDMORE : 0) < 0) die_zmq("zmq_send");
}

size_t view_message(struct message *message, struct frame *to) {
    for (size_t i = 0; i < message->count; i++)
        to[i] = (struct frame){zmq_msg_data(&message->frames[i]), zmq_msg_size(&message->frames[i])};
    return message->count;
}
