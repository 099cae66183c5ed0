/* The worker-pool experiment with plain sockets: the server has a thread for each connection, which reads a request and puts it
 * into a queue; the workers take from the queue and write the reply. A message is its length in four bytes and a body.
 *
 * usage: thread_pool [--requests N] [--clients N] [--workers N] [--size BYTES] [--work-us N] */
#define _GNU_SOURCE
#include "peer.h"
#include "pool.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LENGTH_BYTES = 4 };

struct job {
    struct job *next;
    int fd;
    uint32_t size;
    unsigned char bytes[]; /* the length and the body, as they were read */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t filled = PTHREAD_COND_INITIALIZER;
static struct job *first, **last = &first;
static uint64_t work_us;
static uint16_t port;

static void *serve_connection(void *with) {
    int fd = (int)(intptr_t)with;
    uint32_t size;
    while (read_exactly(fd, &size, LENGTH_BYTES)) {
        if (size > BODY_MOST) die_because("request", "too long");
        struct job *job = malloc(sizeof *job + LENGTH_BYTES + size);
        if (job == NULL) die("malloc");
        *job = (struct job){.fd = fd, .size = size};
        memcpy(job->bytes, &size, LENGTH_BYTES);
        if (!read_exactly(fd, job->bytes + LENGTH_BYTES, size)) break;
        pthread_mutex_lock(&lock);
        *last = job;
        last = &job->next;
        pthread_cond_signal(&filled);
        pthread_mutex_unlock(&lock);
    }
    close(fd);
    return NULL;
}

static void *serve(void *with) {
    (void)with;
    prepare_thread();
    for (;;) {
        pthread_mutex_lock(&lock);
        while (first == NULL) pthread_cond_wait(&filled, &lock);
        struct job *job = first;
        first = job->next;
        if (first == NULL) last = &first;
        pthread_mutex_unlock(&lock);
        work(work_us);
        write_all(job->fd, job->bytes, LENGTH_BYTES + job->size, 0);
        free(job);
    }
    return NULL;
}

static void *accept_connections(void *with) {
    int listener = (int)(intptr_t)with, on = 1;
    for (int fd; (fd = accept(listener, NULL, NULL)) >= 0;) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        pool_spawn(1, serve_connection, (void *)(intptr_t)fd);
    }
    die("accept");
}

static void *open_client(void *with) {
    (void)with;
    return (void *)(intptr_t)connect_loopback(port);
}

static void call(void *client, unsigned char *body, size_t size) {
    int fd = (int)(intptr_t)client;
    uint32_t length = (uint32_t)size;
    write_all(fd, &length, LENGTH_BYTES, MSG_MORE);
    write_all(fd, body, size, 0);
    if (!read_exactly(fd, &length, LENGTH_BYTES) || length != size || !read_exactly(fd, body, size))
        die_because("server", "closed the connection");
}

int main(int argc, char **argv) {
    struct pool pool = pool_options(argc, argv);
    work_us = pool.work_us;
    prepare_process();
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, size) != 0 || listen(listener, 1024) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) != 0)
        die("listen");
    port = ntohs(address.sin_port);
    pool_spawn(1, accept_connections, (void *)(intptr_t)listener);
    pool_spawn(pool.workers, serve, NULL);
    pool_run(&pool, open_client, call, NULL);
    exit(0);
}
