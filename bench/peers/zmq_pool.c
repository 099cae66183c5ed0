/* The worker-pool experiment on libzmq: REQ clients, a ROUTER/DEALER proxy, REP workers.
 *
 * usage: zmq_pool --transport inproc|ipc|tcp [--requests N] [--clients N] [--workers N] [--size BYTES] [--work-us N] */
#define _GNU_SOURCE
#include "peer.h"
#include "pool.h"
#include "zmq_frames.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ENDPOINT_MOST = 128 };

static void *context, *front, *back;
static char front_endpoint[ENDPOINT_MOST], back_endpoint[ENDPOINT_MOST];
static uint64_t work_us;

static void bind_both(const char *transport) {
    int pid = (int)getpid();
    if (strcmp(transport, "tcp") == 0) {
        snprintf(front_endpoint, ENDPOINT_MOST, "tcp://127.0.0.1:%d", bind_socket(front, "tcp://127.0.0.1:*"));
        snprintf(back_endpoint, ENDPOINT_MOST, "tcp://127.0.0.1:%d", bind_socket(back, "tcp://127.0.0.1:*"));
        return;
    }
    const char *form = strcmp(transport, "ipc") == 0 ? "ipc://@pool-%s-%d" : "inproc://pool-%s-%d";
    snprintf(front_endpoint, ENDPOINT_MOST, form, "front", pid);
    snprintf(back_endpoint, ENDPOINT_MOST, form, "back", pid);
    if (zmq_bind(front, front_endpoint) != 0 || zmq_bind(back, back_endpoint) != 0) die_zmq("zmq_bind");
}

static void *proxy(void *with) {
    (void)with;
    zmq_proxy(front, back, NULL);
    die_zmq("zmq_proxy");
}

static void *connected(int type, const char *endpoint) {
    void *socket = open_socket(context, type);
    if (zmq_connect(socket, endpoint) != 0) die_zmq(endpoint);
    return socket;
}

static void *serve(void *with) {
    (void)with;
    void *socket = connected(ZMQ_REP, back_endpoint);
    struct message message;
    prepare_thread();
    while (receive_message(socket, &message, 0)) {
        work(work_us);
        forward_frames(socket, &message, 0);
    }
    return NULL;
}

static void *open_client(void *with) {
    (void)with;
    return connected(ZMQ_REQ, front_endpoint);
}

static void call(void *client, unsigned char *body, size_t size) {
    if (zmq_send(client, body, size, 0) < 0 || zmq_recv(client, body, size, 0) < 0) die_zmq("call");
}

int main(int argc, char **argv) {
    struct pool pool = pool_options(argc, argv);
    if (pool.transport == NULL) die_because("usage", "zmq_pool --transport inproc|ipc|tcp");
    work_us = pool.work_us;
    prepare_process();
    context = zmq_ctx_new();
    front = open_socket(context, ZMQ_ROUTER);
    back = open_socket(context, ZMQ_DEALER);
    bind_both(pool.transport);
    pool_spawn(1, proxy, NULL);
    pool_spawn(pool.workers, serve, NULL);
    sleep_us(50000); /* all workers are there before the proxy deals the first requests out */
    pool_run(&pool, open_client, call, NULL);
    exit(0); /* the threads that remain wait for nothing */
}
