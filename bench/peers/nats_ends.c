/* Clients and a worker for request and reply through NATS without a store, as its own libraries do it: a subject of the service, and
 * one for the replies, which has the request's number at its end.
 *
 * usage: nats_ends work --port PORT
 *        nats_ends call --port PORT --requests N [--ahead N] [--size BYTES] */
#define _GNU_SOURCE
#include "ledger.h"
#include "peer.h"
#include "stream.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

enum { REQUESTS_MOST = 100000000, HEAD_MOST = 256 };

static struct stream stream;
static int poller;

/* A message that arrived. The reply's subject is empty if none was given. */
struct delivery {
    char reply[HEAD_MOST];
    const unsigned char *body;
    size_t size;
};

/* The next message; sees to whatever else comes. False: there is none. */
static bool next_delivery(struct delivery *delivery) {
    size_t after;
    for (const char *text; (text = stream_line(&stream, stream.in.begin, &after)) != NULL; stream.in.begin = after) {
        char reply[HEAD_MOST] = "", last[HEAD_MOST] = "";
        if (sscanf(text, "MSG %*s %*s %255s %255s", reply, last) >= 1) { /* with a reply's subject, or the size alone */
            bool has_reply = last[0] != '\0';
            size_t size = strtoul(has_reply ? last : reply, NULL, 10);
            if (stream.in.end - after < size + 2) return false;
            strcpy(delivery->reply, has_reply ? reply : "");
            delivery->body = stream.in.data + after;
            delivery->size = size;
            stream.in.begin = after + size + 2;
            return true;
        }
        if (strcmp(text, "PING") == 0) stream_say(&stream, "PONG\r\n");
        else if (strcmp(text, "PONG") == 0) stream.ready = true;
        else if (strncmp(text, "INFO ", 5) != 0 && strcmp(text, "+OK") != 0) die_because("nats", text);
    }
    return false;
}

static void wait_and_read(void) {
    struct epoll_event event;
    stream_flush(&stream, poller, NULL);
    if (epoll_wait(poller, &event, 1, -1) < 0 && errno != EINTR) die("epoll_wait");
    if (!stream_read(&stream)) die_because("nats", "closed the connection");
}

/* Connects, and waits until the subscription is known. */
static void open_connection(uint16_t port, const char *subject) {
    char text[HEAD_MOST];
    struct delivery delivery;
    poller = poller_open();
    stream_connect(&stream, port);
    stream_watch(&stream, poller, NULL);
    snprintf(text, sizeof text, "CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB %s 1\r\nPING\r\n", subject);
    stream_say(&stream, text);
    while (!stream.ready) {
        wait_and_read();
        next_delivery(&delivery);
    }
}

static void publish(const char *head, const void *body, size_t size) {
    stream_say(&stream, head);
    buffer_append(&stream.out, body, size);
    stream_say(&stream, "\r\n");
}

static _Noreturn void serve(void) {
    struct delivery delivery;
    announce(0);
    for (;;) {
        while (next_delivery(&delivery)) {
            char head[HEAD_MOST + 32];
            snprintf(head, sizeof head, "PUB %s %zu\r\n", delivery.reply, delivery.size);
            publish(head, delivery.body, delivery.size);
        }
        wait_and_read();
    }
}

static void ask(unsigned char *body, size_t size, uint32_t number) {
    char head[HEAD_MOST];
    memcpy(body, &number, NUMBER_BYTES);
    snprintf(head, sizeof head, "PUB echo _INBOX.caller.%u %zu\r\n", number, size);
    publish(head, body, size);
}

static void call(uint64_t requests, uint64_t ahead, size_t size) {
    static unsigned char body[BODY_MOST];
    struct delivery delivery;
    struct ledger ledger;
    fill_body(body, size, REHEARSAL);
    ask(body, size, REHEARSAL);
    while (!next_delivery(&delivery)) wait_and_read();
    ledger_open(&ledger, requests);
    ledger_begin(&ledger);
    while (!ledger_done(&ledger)) {
        double now = now_seconds();
        while (next_delivery(&delivery)) ledger_reply(&ledger, delivery.body, delivery.size, now);
        while (ledger.sent < requests && ledger.sent - ledger.replies < ahead) ask(body, size, ledger_send(&ledger, now));
        if (!ledger_done(&ledger)) wait_and_read();
    }
    ledger_report(&ledger);
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"port", required_argument, NULL, 'p'},  {"requests", required_argument, NULL, 'n'},
        {"ahead", required_argument, NULL, 'a'}, {"size", required_argument, NULL, 'b'},
        {NULL, 0, NULL, 0},
    };
    uint16_t port = 0;
    uint64_t requests = 0, ahead = 1, size = 30;
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'p': port = (uint16_t)parse_count(optarg, UINT16_MAX); break;
        case 'n': requests = parse_count(optarg, REQUESTS_MOST); break;
        case 'a': ahead = parse_count(optarg, REQUESTS_MOST); break;
        case 'b': size = parse_count(optarg, BODY_MOST); break;
        default: return 2;
        }
    }
    const char *role = optind < argc ? argv[optind] : "";
    bool calls = strcmp(role, "call") == 0;
    if (port == 0 || ahead == 0 || (calls ? requests == 0 : strcmp(role, "work") != 0))
        die_because("usage", "nats_ends work|call --port PORT ...");
    prepare_process();
    open_connection(port, calls ? "_INBOX.caller.*" : "echo");
    if (calls) call(requests, ahead, size);
    else serve();
    return 0;
}
