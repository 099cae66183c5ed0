/* A file server on libzmq, for the three models of transferring files: it answers [fetch] with the whole file at once in chunks
 * ended by an empty one (model 1), and [fetch, offset, size] with that chunk (model 2, and model 3 where requests are
 * sent ahead).
 *
 * usage: zmq_server [--chunk BYTES] [--curve SECRET_KEY] FILE */
#define _GNU_SOURCE
#include "peer.h"
#include "zmq_curve.h"

#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

enum { IDENTITY_MOST = 255, FRAME_MOST = 64, CHUNK_MOST = 1 << 30, MORE_SOCKETS = 4096 };

static _Noreturn void die_zmq(const char *what) { die_because(what, zmq_strerror(zmq_errno())); }

static bool more_follows(void *socket) {
    int more = 0;
    size_t size = sizeof more;
    if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &size) != 0) die_zmq("ZMQ_RCVMORE");
    return more != 0;
}

/* One frame of a request as text; longer ones are cut, which no valid request is. */
static void receive_text(void *socket, char *text) {
    int size = zmq_recv(socket, text, FRAME_MOST, 0);
    if (size < 0) die_zmq("zmq_recv");
    text[size < FRAME_MOST ? size : FRAME_MOST] = '\0';
}

/* Reads a chunk straight into the message that is sent: the fewest copies that the library's interface allows. */
static size_t send_chunk(void *socket, const char *identity, size_t identity_size, int file, uint64_t offset, size_t size) {
    zmq_msg_t chunk;
    if (zmq_msg_init_size(&chunk, size) != 0) die_zmq("zmq_msg_init_size");
    ssize_t got = size == 0 ? 0 : pread(file, zmq_msg_data(&chunk), size, (off_t)offset);
    if (got < 0) die("pread");
    if ((size_t)got < size) {
        zmq_msg_t shorter;
        if (zmq_msg_init_size(&shorter, (size_t)got) != 0) die_zmq("zmq_msg_init_size");
        memcpy(zmq_msg_data(&shorter), zmq_msg_data(&chunk), (size_t)got);
        zmq_msg_move(&chunk, &shorter);
    }
    if (zmq_send(socket, identity, identity_size, ZMQ_SNDMORE) < 0) die_zmq("zmq_send");
    if (zmq_msg_send(&chunk, socket, 0) < 0) die_zmq("zmq_msg_send");
    return (size_t)got;
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"chunk", required_argument, NULL, 'c'}, {"curve", required_argument, NULL, 'k'}, {NULL, 0, NULL, 0}};
    size_t chunk = 250000;
    const char *secret = NULL;
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'c': chunk = parse_count(optarg, CHUNK_MOST); break;
        case 'k': secret = optarg; break;
        default: return 2;
        }
    }
    if (argc - optind != 1 || chunk == 0) die_because("usage", "zmq_server [--chunk BYTES] FILE");
    int file = open(argv[optind], O_RDONLY | O_CLOEXEC);
    if (file < 0) die(argv[optind]);
    prepare_process();
    allow_many_descriptors();

    void *context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, MORE_SOCKETS);
    void *router = zmq_socket(context, ZMQ_ROUTER);
    int unlimited = 0, backlog = MORE_SOCKETS;
    /* At its default limit a ROUTER drops what does not fit: model 1 would lose most of the file. */
    zmq_setsockopt(router, ZMQ_SNDHWM, &unlimited, sizeof unlimited);
    zmq_setsockopt(router, ZMQ_BACKLOG, &backlog, sizeof backlog);
    if (secret != NULL) curve_server(router, secret);
    if (zmq_bind(router, "tcp://127.0.0.1:*") != 0) die_zmq("zmq_bind");
    char endpoint[64];
    size_t endpoint_size = sizeof endpoint;
    if (zmq_getsockopt(router, ZMQ_LAST_ENDPOINT, endpoint, &endpoint_size) != 0) die_zmq("ZMQ_LAST_ENDPOINT");
    announce(atoi(strrchr(endpoint, ':') + 1));

    for (;;) {
        char identity[IDENTITY_MOST], command[FRAME_MOST + 1], offset[FRAME_MOST + 1], size[FRAME_MOST + 1];
        int identity_size = zmq_recv(router, identity, sizeof identity, 0);
        if (identity_size < 0) die_zmq("zmq_recv");
        receive_text(router, command);
        if (strcmp(command, "fetch") != 0) die_because("request", "not a fetch");
        if (!more_follows(router)) {
            uint64_t at = 0;
            for (size_t sent = 1; sent > 0; at += sent)
                sent = send_chunk(router, identity, (size_t)identity_size, file, at, chunk);
            continue;
        }
        receive_text(router, offset);
        if (!more_follows(router)) die_because("request", "an offset without a size");
        receive_text(router, size);
        if (more_follows(router)) die_because("request", "too many frames");
        send_chunk(router, identity, (size_t)identity_size, file, parse_count(offset, INT64_MAX), parse_count(size, CHUNK_MOST));
    }
}
