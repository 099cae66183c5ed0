/* A Majordomo 0.1 broker on libzmq, as one writes it from the specification: a ROUTER, a table of services and one of workers,
 * a queue a service, the worker that has waited longest first, one request at a time for a worker. A turn takes all that has
 * arrived, up to a bound.
 *
 * usage: mdp_broker [--bind ENDPOINT] [--heartbeat-ms N] [--expire-ms N]
 *
 * Requests for which no worker comes are dropped after --expire-ms. A worker that has nothing to do and is silent for three
 * heartbeats is forgotten; one that works may be silent. */
#include "peer.h"
#include "table.h"
#include "zmq_frames.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

enum { LIVENESS = 3, TURN_MESSAGES = 1000, SOCKETS_MOST = 20000 };
enum { WORKER_READY = 1, WORKER_REQUEST, WORKER_REPLY, WORKER_HEARTBEAT, WORKER_DISCONNECT };

/* A request that waits. Its message is [client, "", header, service, body...]. */
struct request {
    struct request *next;
    double expires;
    size_t count;
    zmq_msg_t frames[];
};

struct worker;

struct service {
    struct entry entry;
    struct request *first_request, *last_request;
    struct worker *first_waiting, *last_waiting; /* the first has waited longest */
    size_t workers;
};

struct worker {
    struct entry entry;
    struct service *service;
    struct worker *before, *after; /* among those that wait */
    bool waiting;
    double expires;
};

static void *router;
static struct table services, workers;
static double heartbeat_seconds = 2.5, expire_seconds = 60;
static double now;

/* ---- sending ---- */

static void send_worker(const struct worker *worker, char command) {
    struct frame frames[] = {{worker->entry.name, worker->entry.name_size}, {"", 0}, {"MDPW01", 6}, {&command, 1}};
    send_frames(router, frames, 4, false);
}

static void disconnect_stranger(struct frame identity) {
    char command = WORKER_DISCONNECT;
    struct frame frames[] = {identity, {"", 0}, {"MDPW01", 6}, {&command, 1}};
    send_frames(router, frames, 4, false);
}

/* To a worker goes [worker, "", MDPW01, REQUEST, client, "", body...]. */
static void send_request(const struct worker *worker, zmq_msg_t *frames, size_t count) {
    static const char command = WORKER_REQUEST;
    struct frame head[] = {{worker->entry.name, worker->entry.name_size}, {"", 0}, {"MDPW01", 6}, {&command, 1}};
    send_frames(router, head, 4, true);
    for (size_t i = 0; i < count; i++) {
        if (i == 2 || i == 3) { /* the client's header and the service */
            zmq_msg_close(&frames[i]);
            continue;
        }
        if (zmq_msg_send(&frames[i], router, i + 1 < count ? ZMQ_SNDMORE : 0) < 0) die_zmq("zmq_msg_send");
    }
}

/* ---- services and their workers ---- */

static struct service *service_of(struct frame name) {
    struct entry *entry = table_find(&services, name.data, name.size);
    return entry != NULL ? (struct service *)entry : table_add(&services, sizeof(struct service), name.data, name.size);
}

static void stop_waiting(struct worker *worker) {
    if (!worker->waiting) return;
    struct service *service = worker->service;
    *(worker->before ? &worker->before->after : &service->first_waiting) = worker->after;
    *(worker->after ? &worker->after->before : &service->last_waiting) = worker->before;
    worker->before = worker->after = NULL;
    worker->waiting = false;
}

static void forget_worker(struct worker *worker) {
    stop_waiting(worker);
    worker->service->workers--;
    table_remove(&workers, &worker->entry);
}

static struct request *take_request(struct service *service) {
    struct request *request = service->first_request;
    if (request != NULL) {
        service->first_request = request->next;
        if (request->next == NULL) service->last_request = NULL;
    }
    return request;
}

/* The worker gets the next request, or joins those that wait. */
static void employ(struct worker *worker) {
    struct service *service = worker->service;
    struct request *request = take_request(service);
    worker->expires = now + LIVENESS * heartbeat_seconds;
    if (request != NULL) {
        send_request(worker, request->frames, request->count);
        free(request);
        return;
    }
    worker->waiting = true;
    worker->before = service->last_waiting;
    *(worker->before ? &worker->before->after : &service->first_waiting) = worker;
    service->last_waiting = worker;
}

static void queue_request(struct service *service, struct message *message) {
    struct request *request = malloc(sizeof *request + message->count * sizeof(zmq_msg_t));
    if (request == NULL) die("malloc");
    request->next = NULL;
    request->expires = now + expire_seconds;
    request->count = message->count;
    for (size_t i = 0; i < message->count; i++) {
        zmq_msg_init(&request->frames[i]);
        zmq_msg_move(&request->frames[i], &message->frames[i]);
    }
    close_message(message);
    *(service->last_request ? &service->last_request->next : &service->first_request) = request;
    service->last_request = request;
}

/* ---- what arrives ---- */

static bool is(struct frame frame, const char *words) { return frame.size == strlen(words) && memcmp(frame.data, words, frame.size) == 0; }

static bool is_reserved(struct frame name) { return name.size >= 4 && memcmp(name.data, "mmi.", 4) == 0; }

/* The broker's own services: [client, "", header, mmi.*, name] is answered with a code. */
static void answer_mmi(const struct frame *frames) {
    const char *code = "501";
    if (is(frames[3], "mmi.service")) {
        struct entry *entry = table_find(&services, frames[4].data, frames[4].size);
        code = entry != NULL && ((struct service *)entry)->workers > 0 ? "200" : "404";
    }
    struct frame reply[] = {frames[0], {"", 0}, {"MDPC01", 6}, frames[3], {code, 3}};
    send_frames(router, reply, 5, false);
}

static void take_from_client(struct message *message, const struct frame *frames) {
    if (message->count < 5) return;
    if (is_reserved(frames[3])) {
        answer_mmi(frames);
        return;
    }
    struct service *service = service_of(frames[3]);
    struct worker *worker = service->first_waiting;
    if (worker == NULL) {
        queue_request(service, message);
        return;
    }
    stop_waiting(worker);
    send_request(worker, message->frames, message->count);
    message->count = 0;
}

/* [worker, "", MDPW01, REPLY, client, "", body...] goes to the client as [client, "", MDPC01, service, body...]. */
static void pass_reply(const struct worker *worker, struct message *message, const struct frame *frames) {
    const struct entry *service = &worker->service->entry;
    struct frame head[] = {frames[4], {"", 0}, {"MDPC01", 6}, {service->name, service->name_size}};
    send_frames(router, head, 4, true);
    forward_frames(router, message, 6);
}

static void take_from_worker(struct message *message, const struct frame *frames) {
    if (message->count < 4 || frames[3].size != 1) return;
    struct worker *worker = (struct worker *)table_find(&workers, frames[0].data, frames[0].size);
    char command = *(const char *)frames[3].data;
    if (command == WORKER_READY && worker == NULL && message->count == 5 && !is_reserved(frames[4])) {
        worker = table_add(&workers, sizeof *worker, frames[0].data, frames[0].size);
        worker->service = service_of(frames[4]);
        worker->service->workers++;
        employ(worker);
    } else if (command == WORKER_DISCONNECT) {
        if (worker != NULL) forget_worker(worker);
    } else if (worker == NULL) {
        disconnect_stranger(frames[0]);
    } else if (command == WORKER_HEARTBEAT) {
        worker->expires = now + LIVENESS * heartbeat_seconds;
    } else if (command == WORKER_REPLY && !worker->waiting && message->count >= 7 && frames[5].size == 0) {
        pass_reply(worker, message, frames);
        employ(worker);
    } else {
        disconnect_stranger(frames[0]);
        forget_worker(worker);
    }
}

static void take(struct message *message) {
    struct frame frames[FRAMES_MOST];
    view_message(message, frames);
    if (message->count >= 3 && frames[1].size == 0) {
        if (is(frames[2], "MDPC01")) take_from_client(message, frames);
        else if (is(frames[2], "MDPW01")) take_from_worker(message, frames);
    }
    close_message(message);
}

/* ---- time ---- */

static void beat(struct entry *entry, void *with) {
    (void)with;
    struct worker *worker = (struct worker *)entry;
    if (!worker->waiting) return;
    if (worker->expires < now) forget_worker(worker);
    else send_worker(worker, WORKER_HEARTBEAT);
}

static void expire(struct entry *entry, void *with) {
    (void)with;
    struct service *service = (struct service *)entry;
    while (service->first_request != NULL && service->first_request->expires < now) {
        struct request *request = take_request(service);
        for (size_t i = 0; i < request->count; i++) zmq_msg_close(&request->frames[i]);
        free(request);
    }
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"bind", required_argument, NULL, 'b'}, {"heartbeat-ms", required_argument, NULL, 'h'},
        {"expire-ms", required_argument, NULL, 'x'}, {NULL, 0, NULL, 0}};
    const char *endpoint = "tcp://127.0.0.1:*";
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'b': endpoint = optarg; break;
        case 'h': heartbeat_seconds = (double)parse_count(optarg, 3600000) / 1e3; break;
        case 'x': expire_seconds = (double)parse_count(optarg, UINT32_MAX) / 1e3; break;
        default: return 2;
        }
    }
    prepare_process();
    allow_many_descriptors();
    void *context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, SOCKETS_MOST);
    router = open_socket(context, ZMQ_ROUTER);
    table_open(&services);
    table_open(&workers);
    announce(bind_socket(router, endpoint));
    double next_beat = now_seconds() + heartbeat_seconds;
    for (;;) {
        struct message message;
        zmq_pollitem_t item = {.socket = router, .events = ZMQ_POLLIN};
        now = now_seconds();
        long timeout_ms = next_beat > now ? (long)((next_beat - now) * 1e3) + 1 : 0;
        if (zmq_poll(&item, 1, timeout_ms) < 0 && zmq_errno() != EINTR) die_zmq("zmq_poll");
        now = now_seconds();
        for (int i = 0; i < TURN_MESSAGES && receive_message(router, &message, ZMQ_DONTWAIT); i++) take(&message);
        if (now >= next_beat) {
            table_visit(&workers, beat, NULL);
            table_visit(&services, expire, NULL);
            next_beat = now + heartbeat_seconds;
        }
    }
}
