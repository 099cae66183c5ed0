/* Clients, any number of them in one thread, each with some requests ahead.
 *
 * usage: load_client --port PORT --requests N [--ahead N] [--dialect raw|0.1|0.2|majortomo] [--service NAME] [--services N]
 *                    [--clients N] [--size BYTES]
 *
 * The requests go to the services in turn. --ahead is the number of requests that each client may have in flight. It prints "connected" when all clients
 * are, and begins at the first line on standard input. */
#include "ledger.h"
#include "load.h"
#include "peer.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { REQUESTS_MOST = 100000000 };

static const struct dialect *dialect;
static const char *service = "echo";
static struct stream *streams;
static uint64_t *under_way; /* by client */
static size_t clients = 1, services = 1, body_size = 30;
static uint64_t ahead = 1;
static struct ledger ledger;
static struct buffer *heads; /* by service: all bytes of a request before its body */
static unsigned char body[BODY_MOST];
static int poller;

static void prepare_heads(void) {
    heads = calloc(services, sizeof *heads);
    if (heads == NULL) die("calloc");
    for (size_t i = 0; dialect != NULL && i < services; i++) {
        char name[SERVICE_MOST + 1];
        struct frame frames[HEAD_FRAMES_MOST];
        struct stream scratch = {0};
        service_name(name, service, i, services);
        size_t count = mdp_request_head(dialect, name, frames);
        for (size_t j = 0; j < count; j++) stream_put(&scratch, frames[j].data, frames[j].size, true);
        heads[i] = scratch.out;
    }
}

static void ask(size_t client, uint32_t number) {
    struct stream *stream = &streams[client];
    const struct buffer *head = &heads[number == REHEARSAL ? 0 : number % services];
    memcpy(body + SLOT_BYTES, &number, NUMBER_BYTES);
    if (dialect == NULL) {
        stream_put(stream, body, SLOT_BYTES + body_size, false);
    } else {
        buffer_append(&stream->out, head->data, head->end);
        stream_put(stream, body + SLOT_BYTES, body_size, false);
    }
}

static void fill(size_t client) {
    if (ledger.sent >= ledger.requests || under_way[client] >= ahead) return;
    double now = now_seconds();
    for (; under_way[client] < ahead && ledger.sent < ledger.requests; under_way[client]++) ask(client, ledger_send(&ledger, now));
}

/* The body of the next reply of a client; one of no bytes if there is none. */
static struct frame next_reply(struct stream *stream) {
    struct frame frames[MESSAGE_FRAMES_MOST];
    size_t count = stream_next(stream, frames);
    if (count == 0) return (struct frame){NULL, 0};
    if (dialect != NULL) return frames[mdp_reply_body(dialect, frames, count)];
    if (frames[0].size < SLOT_BYTES) die_because("reply", "without a slot");
    return (struct frame){(const char *)frames[0].data + SLOT_BYTES, frames[0].size - SLOT_BYTES};
}

static void take(size_t client) {
    struct stream *stream = &streams[client];
    if (!stream_read(stream)) die_because("broker", "closed the connection");
    double now = now_seconds();
    for (struct frame reply; (reply = next_reply(stream)).size > 0; under_way[client]--)
        ledger_reply(&ledger, reply.data, reply.size, now);
}

/* One request a client that doesn't count shows that the way is open. */
static void rehearse(size_t client) {
    struct stream *stream = &streams[client];
    struct frame reply;
    ask(client, REHEARSAL);
    stream_flush(stream, poller, stream);
    while ((reply = next_reply(stream)).size == 0) {
        struct epoll_event event;
        epoll_wait(poller, &event, 1, -1);
        if (!stream_read(stream)) die_because("broker", "closed the connection");
    }
    if (body_number(reply.data, reply.size) != REHEARSAL) die_because("rehearsal", "another reply");
}

static void await_start(void) {
    puts("connected");
    fflush(stdout);
    for (int byte; (byte = getchar()) != '\n';)
        if (byte == EOF) die_because("start", "standard input has ended");
}

static void run(void) {
    struct epoll_event ready[EVENTS_AT_ONCE];
    ledger_begin(&ledger);
    for (size_t i = 0; i < clients; i++) {
        fill(i);
        stream_flush(&streams[i], poller, &streams[i]);
    }
    while (!ledger_done(&ledger)) {
        int events = epoll_wait(poller, ready, EVENTS_AT_ONCE, -1);
        if (events < 0 && errno != EINTR) die("epoll_wait");
        for (int i = 0; i < events; i++) {
            struct stream *stream = ready[i].data.ptr;
            size_t client = (size_t)(stream - streams);
            if (ready[i].events & ~(uint32_t)EPOLLOUT) take(client);
            fill(client);
            stream_flush(stream, poller, stream);
        }
    }
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"port", required_argument, NULL, 'p'},     {"dialect", required_argument, NULL, 'd'},
        {"service", required_argument, NULL, 's'},  {"services", required_argument, NULL, 'v'},
        {"clients", required_argument, NULL, 'c'},  {"requests", required_argument, NULL, 'n'},
        {"ahead", required_argument, NULL, 'a'},    {"size", required_argument, NULL, 'b'},
        {NULL, 0, NULL, 0},
    };
    uint16_t port = 0;
    uint64_t requests = 0;
    dialect = dialect_named("0.1");
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'p': port = (uint16_t)parse_count(optarg, UINT16_MAX); break;
        case 'd': dialect = load_dialect(optarg); break;
        case 's': service = optarg; break;
        case 'v': services = parse_count(optarg, CONNECTIONS_MOST); break;
        case 'c': clients = parse_count(optarg, CONNECTIONS_MOST); break;
        case 'n': requests = parse_count(optarg, REQUESTS_MOST); break;
        case 'a': ahead = parse_count(optarg, REQUESTS_MOST); break;
        case 'b': body_size = parse_count(optarg, BODY_MOST - SLOT_BYTES); break;
        default: return 2;
        }
    }
    if (port == 0 || requests == 0 || ahead == 0 || clients == 0 || services == 0)
        die_because("usage", "load_client --port PORT --requests N ...");
    prepare_process();
    allow_many_descriptors();
    poller = poller_open();
    streams = calloc(clients, sizeof *streams);
    under_way = calloc(clients, sizeof *under_way);
    if (streams == NULL || under_way == NULL) die("calloc");
    prepare_heads();
    fill_body(body + SLOT_BYTES, body_size, 0);
    load_connect(streams, clients, port, dialect, RAW_CLIENT, poller);
    for (size_t i = 0; i < clients; i++) rehearse(i);
    ledger_open(&ledger, requests);
    await_start();
    run();
    ledger_report(&ledger);
    return 0;
}
