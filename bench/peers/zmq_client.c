/* Receivers on libzmq for the three models of transferring files; any number of them in one process, one socket each.
 *
 * usage: zmq_client --endpoint ENDPOINT --size BYTES [--model 1|2|3] [--chunk BYTES] [--ahead N] [--clients N] [--to FILE]
 *                   [--curve KEY]
 *
 * Model 1 asks once and takes what comes, model 2 asks for a chunk at a time, model 3 keeps N requests ahead. What arrives is
 * dropped, or written to FILE. */
#define _GNU_SOURCE
#include "peer.h"
#include "zmq_curve.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

enum { EVENTS_AT_ONCE = 64, CLIENTS_MOST = 4000, CHUNK_MOST = 1 << 30 };

struct client {
    void *socket;
    uint64_t asked, received; /* bytes */
};

static uint64_t total;       /* bytes that each client fetches */
static size_t chunk = 250000; /* bytes in a request */
static int model = 3;
static uint64_t ahead = 10; /* requests in flight */
static int file = -1;

static _Noreturn void die_zmq(const char *what) { die_because(what, zmq_strerror(zmq_errno())); }

static void ask_whole(struct client *client) {
    if (zmq_send(client->socket, "fetch", 5, 0) < 0) die_zmq("zmq_send");
    client->asked = total;
}

static void ask_chunk(struct client *client) {
    char offset[24], size[24];
    size_t wanted = total - client->asked < chunk ? (size_t)(total - client->asked) : chunk;
    int offset_size = snprintf(offset, sizeof offset, "%" PRIu64, client->asked);
    int size_size = snprintf(size, sizeof size, "%zu", wanted);
    if (zmq_send(client->socket, "fetch", 5, ZMQ_SNDMORE) < 0 ||
        zmq_send(client->socket, offset, (size_t)offset_size, ZMQ_SNDMORE) < 0 ||
        zmq_send(client->socket, size, (size_t)size_size, 0) < 0)
        die_zmq("zmq_send");
    client->asked += wanted;
}

static void begin(struct client *client) {
    if (model == 1) {
        ask_whole(client);
        return;
    }
    for (uint64_t i = 0; i < (model == 2 ? 1 : ahead) && client->asked < total; i++) ask_chunk(client);
}

static void keep(const char *data, size_t size, uint64_t offset) {
    while (size > 0) {
        ssize_t written = pwrite(file, data, size, (off_t)offset);
        if (written < 0) die("pwrite");
        data += written;
        size -= (size_t)written;
        offset += (uint64_t)written;
    }
}

/* Takes one chunk. False: the client has everything. Model 1 has it when the empty chunk at the end arrives. */
static bool take_chunk(struct client *client, zmq_msg_t *message) {
    size_t size = zmq_msg_size(message);
    if (zmq_msg_more(message)) die_because("server", "answered with an error");
    if (size == 0 && client->received < total) die_because("server", "ended the file too early");
    if (file >= 0) keep(zmq_msg_data(message), size, client->received);
    client->received += size;
    if (client->received > total) die_because("server", "sent more than the file");
    if (model == 1) return size > 0;
    if (client->asked < total) ask_chunk(client);
    return client->received < total;
}

/* One client: plain blocking receives, as such programs are written. */
static void run_one(struct client *client) {
    zmq_msg_t message;
    begin(client);
    do {
        zmq_msg_init(&message);
        if (zmq_msg_recv(&message, client->socket, 0) < 0) die_zmq("zmq_msg_recv");
        bool more = take_chunk(client, &message);
        zmq_msg_close(&message);
        if (!more) return;
    } while (true);
}

/* Takes what a socket has. Its descriptor signals edges only, so this ends with a receive that finds nothing, and after the
 * last send. False: the client has everything. */
static bool drain(struct client *client) {
    for (;;) {
        zmq_msg_t message;
        zmq_msg_init(&message);
        if (zmq_msg_recv(&message, client->socket, ZMQ_DONTWAIT) < 0) {
            if (zmq_errno() != EAGAIN) die_zmq("zmq_msg_recv");
            return true;
        }
        bool more = take_chunk(client, &message);
        zmq_msg_close(&message);
        if (!more) return false;
    }
}

static void run_many(struct client *clients, size_t count) {
    int poller = epoll_create1(EPOLL_CLOEXEC);
    if (poller < 0) die("epoll_create1");
    size_t unfinished = count;
    for (size_t i = 0; i < count; i++) {
        int fd;
        size_t size = sizeof fd;
        if (zmq_getsockopt(clients[i].socket, ZMQ_FD, &fd, &size) != 0) die_zmq("ZMQ_FD");
        struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.ptr = &clients[i]};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event) != 0) die("epoll_ctl");
    }
    for (size_t i = 0; i < count; i++) {
        begin(&clients[i]);
        if (!drain(&clients[i])) unfinished--;
    }
    struct epoll_event ready[EVENTS_AT_ONCE];
    while (unfinished > 0) {
        int events = epoll_wait(poller, ready, EVENTS_AT_ONCE, -1);
        if (events < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < events; i++) {
            struct client *client = ready[i].data.ptr;
            if (client->received < total && !drain(client)) unfinished--;
        }
    }
    close(poller);
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"endpoint", required_argument, NULL, 'e'}, {"size", required_argument, NULL, 's'},
        {"model", required_argument, NULL, 'm'},    {"chunk", required_argument, NULL, 'c'},
        {"ahead", required_argument, NULL, 'a'},    {"clients", required_argument, NULL, 'n'},
        {"to", required_argument, NULL, 't'},       {"curve", required_argument, NULL, 'k'},
        {NULL, 0, NULL, 0},
    };
    const char *endpoint = NULL, *path = NULL, *server_key = NULL;
    size_t count = 1;
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'e': endpoint = optarg; break;
        case 's': total = parse_count(optarg, INT64_MAX); break;
        case 'm': model = (int)parse_count(optarg, 3); break;
        case 'c': chunk = parse_count(optarg, CHUNK_MOST); break;
        case 'a': ahead = parse_count(optarg, 100000); break;
        case 'n': count = parse_count(optarg, CLIENTS_MOST); break;
        case 't': path = optarg; break;
        case 'k': server_key = optarg; break;
        default: return 2;
        }
    }
    if (endpoint == NULL || total == 0 || count == 0 || chunk == 0 || ahead == 0 || model == 0)
        die_because("usage", "zmq_client --endpoint ENDPOINT --size BYTES ...");
    if (model == 1 && count > 1) die_because("usage", "model 1 is for one client");
    if (path != NULL) {
        if (count > 1) die_because("usage", "--to is for one client");
        file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        if (file < 0) die(path);
    }
    prepare_process();
    allow_many_descriptors();
    double begin_seconds = now_seconds();
    void *context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, CLIENTS_MOST + 10);
    struct client *clients = calloc(count, sizeof *clients);
    if (clients == NULL) die("calloc");
    for (size_t i = 0; i < count; i++) {
        clients[i].socket = zmq_socket(context, ZMQ_DEALER);
        if (clients[i].socket == NULL) die_zmq("zmq_socket");
        int linger = 0;
        zmq_setsockopt(clients[i].socket, ZMQ_LINGER, &linger, sizeof linger);
        if (server_key != NULL) curve_client(clients[i].socket, server_key);
        if (zmq_connect(clients[i].socket, endpoint) != 0) die_zmq("zmq_connect");
    }
    if (count == 1) run_one(&clients[0]);
    else run_many(clients, count);
    if (file >= 0 && close(file) != 0) die(path);
    double seconds = now_seconds() - begin_seconds;
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        bytes += clients[i].received;
        zmq_close(clients[i].socket);
    }
    zmq_ctx_term(context);
    free(clients);
    report(bytes, seconds);
    return 0;
}
