/* A stock client on libzmq: one request at a time (a REQ socket in dialect 0.1, otherwise a DEALER), some ahead, or all at once.
 *
 * usage: zmq_caller --endpoint ENDPOINT [--endpoint ANOTHER]... --requests N [--ahead N] [--dialect plain|0.1|0.2|majortomo]
 *                   [--service NAME] [--size BYTES] [--timeout-ms N] [--milliseconds N]
 *
 * --ahead 0 sends all requests before it takes a reply. With --timeout-ms and one request at a time, a reply that doesn't come
 * in that time makes it close the socket and send the request anew, to the next endpoint. After --milliseconds it asks
 * nothing more. */
#include "peer.h"
#include "ledger.h"
#include "zmq_frames.h"

#include <getopt.h>
#include <stdio.h>

enum { ENDPOINTS_MOST = 8, REQUESTS_MOST = 100000000 };

static const char *endpoints[ENDPOINTS_MOST];
static size_t endpoint_count = 0, current = 0;
static const struct dialect *dialect;
static const char *service = "echo";
static size_t body_size = 30;
static uint64_t ahead = 1;
static int timeout_ms = -1;
static double limit_seconds = 0; /* 0: none */
static bool request_socket; /* REQ adds and takes the delimiter itself */
static unsigned char body[BODY_MOST];

static void *connect_caller(void *context) {
    void *socket = open_socket(context, request_socket ? ZMQ_REQ : ZMQ_DEALER);
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &timeout_ms, sizeof timeout_ms);
    if (zmq_connect(socket, endpoints[current]) != 0) die_zmq(endpoints[current]);
    return socket;
}

static void call(void *socket, uint32_t number) {
    struct frame frames[HEAD_FRAMES_MOST + 1];
    size_t count = mdp_request_head(dialect, service, frames);
    fill_body(body, body_size, number);
    frames[count++] = (struct frame){body, body_size};
    size_t first = request_socket ? 1 : 0;
    send_frames(socket, frames + first, count - first, false);
}

/* The body of a reply; false if it timed out. */
static bool take(void *socket, struct message *message, struct frame *reply) {
    if (!receive_message(socket, message, 0)) return false;
    struct frame frames[FRAMES_MOST + 1];
    size_t first = request_socket ? 1 : 0;
    frames[0] = (struct frame){"", 0};
    size_t count = view_message(message, frames + first) + first;
    *reply = frames[mdp_reply_body(dialect, frames, count)];
    return true;
}

/* Shows that the way is open, and then begins to count. */
static void rehearse(void *socket, struct ledger *ledger) {
    struct message message;
    struct frame reply;
    call(socket, REHEARSAL);
    if (!take(socket, &message, &reply)) die_because("rehearsal", "no reply");
    if (body_number(reply.data, reply.size) != REHEARSAL) die_because("rehearsal", "another reply");
    close_message(&message);
    ledger_begin(ledger);
}

static void count_reply(struct ledger *ledger, struct message *message, const struct frame *reply) {
    ledger_reply(ledger, reply->data, reply->size, now_seconds());
    close_message(message);
}

static void *run_patiently(void *context, void *socket, struct ledger *ledger) {
    struct message message;
    struct frame reply;
    while (!ledger_done(ledger)) {
        double now = now_seconds();
        if (limit_seconds > 0 && now - ledger->begin > limit_seconds) ledger->requests = ledger->sent;
        if (ledger_done(ledger)) break;
        uint32_t number = ledger_send(ledger, now);
        call(socket, number);
        while (!take(socket, &message, &reply)) {
            zmq_close(socket);
            current = (current + 1) % endpoint_count;
            socket = connect_caller(context);
            ledger_resend(ledger);
            call(socket, number);
        }
        count_reply(ledger, &message, &reply);
    }
    return socket;
}

static void run_ahead(void *socket, struct ledger *ledger) {
    struct message message;
    struct frame reply;
    while (!ledger_done(ledger)) {
        while (ledger->sent < ledger->requests && (ahead == 0 || ledger->sent - ledger->replies < ahead))
            call(socket, ledger_send(ledger, now_seconds()));
        take(socket, &message, &reply);
        count_reply(ledger, &message, &reply);
    }
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"endpoint", required_argument, NULL, 'e'}, {"dialect", required_argument, NULL, 'd'},
        {"service", required_argument, NULL, 's'},  {"requests", required_argument, NULL, 'n'},
        {"ahead", required_argument, NULL, 'a'},    {"size", required_argument, NULL, 'b'},
        {"timeout-ms", required_argument, NULL, 'p'}, {"milliseconds", required_argument, NULL, 'm'},
        {NULL, 0, NULL, 0},
    };
    uint64_t requests = 0;
    dialect = dialect_named("0.1");
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'e':
            if (endpoint_count == ENDPOINTS_MOST) die_because("usage", "too many endpoints");
            endpoints[endpoint_count++] = optarg;
            break;
        case 'd': dialect = dialect_named(optarg); break;
        case 's': service = optarg; break;
        case 'n': requests = parse_count(optarg, REQUESTS_MOST); break;
        case 'a': ahead = parse_count(optarg, REQUESTS_MOST); break;
        case 'b': body_size = parse_count(optarg, BODY_MOST); break;
        case 'm': limit_seconds = (double)parse_count(optarg, 3600000) / 1e3; break;
        case 'p': timeout_ms = (int)parse_count(optarg, 3600000); break;
        default: return 2;
        }
    }
    if (endpoint_count == 0 || requests == 0) die_because("usage", "zmq_caller --endpoint ENDPOINT --requests N ...");
    if (timeout_ms >= 0 && ahead != 1) die_because("usage", "--timeout-ms is for one request at a time");
    request_socket = ahead == 1 && dialect->delimiter && dialect->request == 0;
    prepare_process();
    void *context = zmq_ctx_new();
    void *socket = connect_caller(context);
    struct ledger ledger;
    ledger_open(&ledger, requests);
    rehearse(socket, &ledger);
    if (ahead == 1) socket = run_patiently(context, socket, &ledger);
    else run_ahead(socket, &ledger);
    zmq_close(socket);
    zmq_ctx_term(context);
    ledger_report(&ledger);
    return 0;
}
