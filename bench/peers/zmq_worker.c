/* Stock workers on libzmq that echo: a DEALER and a thread each, in one process or several. They register, beat, and come back after a broker that has
 * gone, as Majordomo asks; in the plain dialect they return whatever comes.
 *
 * usage: zmq_worker --endpoint ENDPOINT [--dialect plain|0.1|0.2|majortomo] [--service NAME] [--workers N] [--processes N]
 *                   [--work-us N] [--heartbeat-ms N]
 *
 * --workers are those of each process. */
#define _GNU_SOURCE
#include "peer.h"
#include "zmq_frames.h"

#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { WORKERS_MOST = 1000, LIVENESS = 3, RECONNECT_US = 20000 };

static const char *endpoint = NULL, *service = "echo";
static const struct dialect *dialect;
static double heartbeat_seconds = 2.5;
static uint64_t work_us = 0;

static void control(void *socket, enum mdp_command command) {
    struct frame frames[HEAD_FRAMES_MOST];
    send_frames(socket, frames, mdp_control(dialect, command, service, frames), false);
}

static void *connect_worker(void *context) {
    void *socket = open_socket(context, ZMQ_DEALER);
    int limit_ms = (int)(heartbeat_seconds * 1e3 / 4);
    if (dialect->worker != NULL) zmq_setsockopt(socket, ZMQ_RCVTIMEO, &limit_ms, sizeof limit_ms);
    if (zmq_connect(socket, endpoint) != 0) die_zmq(endpoint);
    if (dialect->worker != NULL) control(socket, MDP_READY);
    return socket;
}

/* False: the broker wants a new connection. */
static bool answer(void *socket, struct message *message) {
    struct frame frames[FRAMES_MOST], head[HEAD_FRAMES_MOST];
    size_t address, count = view_message(message, frames);
    if (dialect->worker == NULL) {
        work(work_us);
        forward_frames(socket, message, 0);
        return true;
    }
    switch (mdp_understand(dialect, frames, count, &address)) {
    case MDP_HEARTBEAT: close_message(message); return true;
    case MDP_DISCONNECT: close_message(message); return false;
    default: break;
    }
    work(work_us);
    send_frames(socket, head, mdp_reply_head(dialect, frames[address], head), true);
    forward_frames(socket, message, address + 2);
    return true;
}

static void *serve(void *context) {
    void *socket = connect_worker(context);
    double last_received = now_seconds(), sent = last_received;
    prepare_thread();
    for (;;) {
        struct message message;
        bool alive = true;
        double now;
        if (receive_message(socket, &message, 0)) {
            alive = answer(socket, &message);
            last_received = now = now_seconds();
        } else {
            now = now_seconds();
            alive = now - last_received < LIVENESS * heartbeat_seconds;
        }
        if (dialect->worker == NULL) continue;
        if (!alive) {
            zmq_close(socket);
            sleep_us(RECONNECT_US);
            socket = connect_worker(context);
            last_received = sent = now_seconds();
        } else if (now - sent > heartbeat_seconds) {
            control(socket, MDP_HEARTBEAT);
            sent = now;
        }
    }
    return NULL;
}

/* Makes the other processes, which end with the first. True in the first. */
static bool share_work(size_t processes) {
    for (size_t i = 1; i < processes; i++) {
        pid_t child = fork();
        if (child < 0) die("fork");
        if (child > 0) continue;
        prepare_process();
        return false;
    }
    return true;
}

int main(int argc, char **argv) {
    static const struct option known[] = {
        {"endpoint", required_argument, NULL, 'e'}, {"dialect", required_argument, NULL, 'd'},
        {"service", required_argument, NULL, 's'},  {"workers", required_argument, NULL, 'n'},
        {"work-us", required_argument, NULL, 'u'},  {"heartbeat-ms", required_argument, NULL, 'h'},
        {"processes", required_argument, NULL, 'p'}, {NULL, 0, NULL, 0},
    };
    size_t workers = 1, processes = 1;
    dialect = dialect_named("0.1");
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'e': endpoint = optarg; break;
        case 'd': dialect = dialect_named(optarg); break;
        case 's': service = optarg; break;
        case 'n': workers = parse_count(optarg, WORKERS_MOST); break;
        case 'p': processes = parse_count(optarg, WORKERS_MOST); break;
        case 'u': work_us = parse_count(optarg, 10000000); break;
        case 'h': heartbeat_seconds = (double)parse_count(optarg, 3600000) / 1e3; break;
        default: return 2;
        }
    }
    if (endpoint == NULL || workers == 0 || heartbeat_seconds <= 0) die_because("usage", "zmq_worker --endpoint ENDPOINT ...");
    prepare_process();
    allow_many_descriptors();
    bool first = share_work(processes);
    void *context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, WORKERS_MOST + 10);
    pthread_t thread;
    for (size_t i = 0; i < workers; i++)
        if (pthread_create(&thread, NULL, serve, context) != 0) die_because("pthread_create", "failed");
    if (first) announce(0);
    pthread_join(thread, NULL);
    return 0;
}
