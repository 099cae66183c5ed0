/* Clients of a store that confirms a record when it is on the disk; all in one thread.
 *
 * usage: journal_client --port PORT --store redis|nats --requests N [--ahead N] [--clients N] [--size BYTES]
 *
 * --ahead is what each client may have unconfirmed. */
#include "journal.h"
#include "ledger.h"
#include "peer.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <sys/epoll.h>

enum { CLIENTS_MOST = 10000, REQUESTS_MOST = 100000000, EVENTS_AT_ONCE = 256, AHEAD_MOST = 100000 };

struct client {
    uint64_t under_way;
    uint32_t *numbers; /* of records in flight, in a ring: confirmations come in order */
    uint64_t oldest;
};

static const struct store *store;
static struct stream *streams;
static struct client *clients;
static size_t client_count = 1, body_size = 30;
static uint64_t ahead = 1;
static struct ledger ledger;
static unsigned char body[BODY_MOST];
static int poller;

/* Waits for something on any connection and reads it. */
static int wait_and_read(struct epoll_event *ready) {
    int events = epoll_wait(poller, ready, EVENTS_AT_ONCE, -1);
    if (events < 0 && errno != EINTR) die("epoll_wait");
    for (int i = 0; i < events; i++)
        if ((ready[i].events & ~(uint32_t)EPOLLOUT) && !stream_read(ready[i].data.ptr)) die_because("store", "closed the connection");
    return events;
}

static void open_client(size_t client, uint16_t port) {
    struct stream *stream = &streams[client];
    struct epoll_event ready[EVENTS_AT_ONCE];
    stream_connect(stream, port);
    stream_watch(stream, poller, stream);
    store->open(stream, client);
    stream_flush(stream, poller, stream);
    for (size_t wanted = client == 0 ? store->first_confirmations : store->confirmations; wanted > 0;) {
        wait_and_read(ready);
        while (wanted > 0 && store->confirmed(stream)) wanted--;
    }
}

static void take(struct client *client, struct stream *stream) {
    double now = now_seconds();
    while (store->confirmed(stream)) {
        if (client->under_way == 0) die_because("store", "confirmed more than it got");
        ledger_reply(&ledger, &client->numbers[client->oldest++ % ahead], NUMBER_BYTES, now);
        client->under_way--;
    }
}

static void fill(size_t index) {
    struct client *client = &clients[index];
    if (ledger.sent >= ledger.requests || client->under_way >= ahead) return;
    double now = now_seconds();
    for (; client->under_way < ahead && ledger.sent < ledger.requests; client->under_way++) {
        uint32_t number = ledger_send(&ledger, now);
        client->numbers[(client->oldest + client->under_way) % ahead] = number;
        store->add(&streams[index], index, number, body, body_size);
    }
}

static void run(void) {
    struct epoll_event ready[EVENTS_AT_ONCE];
    ledger_begin(&ledger);
    for (size_t i = 0; i < client_count; i++) {
        fill(i);
        stream_flush(&streams[i], poller, &streams[i]);
    }
    while (!ledger_done(&ledger)) {
        int events = wait_and_read(ready);
        for (int i = 0; i < events; i++) {
            struct stream *stream = ready[i].data.ptr;
            size_t index = (size_t)(stream - streams);
            take(&clients[index], stream);
            fill(index);
            stream_flush(stream, poller, stream);
        }
    }
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"port", required_argument, NULL, 'p'},    {"store", required_argument, NULL, 's'},
        {"clients", required_argument, NULL, 'c'}, {"requests", required_argument, NULL, 'n'},
        {"ahead", required_argument, NULL, 'a'},   {"size", required_argument, NULL, 'b'},
        {NULL, 0, NULL, 0},
    };
    uint16_t port = 0;
    uint64_t requests = 0;
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'p': port = (uint16_t)parse_count(optarg, UINT16_MAX); break;
        case 's': store = store_named(optarg); break;
        case 'c': client_count = parse_count(optarg, CLIENTS_MOST); break;
        case 'n': requests = parse_count(optarg, REQUESTS_MOST); break;
        case 'a': ahead = parse_count(optarg, AHEAD_MOST); break;
        case 'b': body_size = parse_count(optarg, BODY_MOST); break;
        default: return 2;
        }
    }
    if (port == 0 || store == NULL || requests == 0 || ahead == 0 || client_count == 0)
        die_because("usage", "journal_client --port PORT --store redis|nats --requests N ...");
    prepare_process();
    allow_many_descriptors();
    poller = poller_open();
    streams = calloc(client_count, sizeof *streams);
    clients = calloc(client_count, sizeof *clients);
    if (streams == NULL || clients == NULL) die("calloc");
    fill_body(body, body_size, 0);
    for (size_t i = 0; i < client_count; i++) {
        clients[i].numbers = calloc(ahead, sizeof *clients[i].numbers);
        if (clients[i].numbers == NULL) die("calloc");
        open_client(i, port);
    }
    ledger_open(&ledger, requests);
    run();
    ledger_report(&ledger);
    return 0;
}
