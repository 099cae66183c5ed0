#include "pool.h"
#include "peer.h"

#include <getopt.h>
#include <pthread.h>
#include <stdlib.h>

struct caller {
    const struct pool *pool;
    void *(*open)(void *with);
    pool_call call;
    void *with;
    pthread_t thread;
    pthread_barrier_t *start;
    struct ledger ledger;
};

struct pool pool_options(int argc, char **argv) {
    static const struct option known[] = {
        {"requests", required_argument, NULL, 'n'}, {"clients", required_argument, NULL, 'c'},
        {"workers", required_argument, NULL, 'w'},  {"size", required_argument, NULL, 'b'},
        {"work-us", required_argument, NULL, 'u'},  {"transport", required_argument, NULL, 't'},
        {NULL, 0, NULL, 0},
    };
    struct pool pool = {.requests = 1000, .clients = 10, .workers = 2, .size = 1024, .work_us = 2000};
    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (option) {
        case 'n': pool.requests = parse_count(optarg, 10000000); break;
        case 'c': pool.clients = parse_count(optarg, 1000); break;
        case 'w': pool.workers = parse_count(optarg, 1000); break;
        case 'b': pool.size = parse_count(optarg, BODY_MOST); break;
        case 'u': pool.work_us = parse_count(optarg, 10000000); break;
        case 't': pool.transport = optarg; break;
        default: exit(2);
        }
    }
    if (pool.clients == 0 || pool.workers == 0 || pool.requests < pool.clients) die_because("usage", "no clients, workers or requests");
    return pool;
}

void pool_spawn(size_t count, void *(*thread)(void *), void *with) {
    pthread_t started;
    for (size_t i = 0; i < count; i++)
        if (pthread_create(&started, NULL, thread, with) != 0) die_because("pthread_create", "failed");
}

static void *run(void *with) {
    struct caller *caller = with;
    size_t size = caller->pool->size;
    unsigned char *body = malloc(size);
    if (body == NULL) die("malloc");
    prepare_thread();
    void *client = caller->open(caller->with);
    fill_body(body, size, REHEARSAL);
    caller->call(client, body, size);
    pthread_barrier_wait(caller->start);
    ledger_begin(&caller->ledger);
    while (!ledger_done(&caller->ledger)) {
        fill_body(body, size, ledger_send(&caller->ledger, now_seconds()));
        caller->call(client, body, size);
        ledger_reply(&caller->ledger, body, size, now_seconds());
    }
    free(body);
    return NULL;
}

void pool_run(const struct pool *pool, void *(*open)(void *with), pool_call call, void *with) {
    struct caller *callers = calloc(pool->clients, sizeof *callers);
    struct ledger all;
    pthread_barrier_t start;
    if (callers == NULL) die("calloc");
    pthread_barrier_init(&start, NULL, (unsigned)pool->clients);
    ledger_open(&all, 0);
    for (size_t i = 0; i < pool->clients; i++) {
        callers[i] = (struct caller){.pool = pool, .open = open, .call = call, .with = with, .start = &start};
        ledger_open(&callers[i].ledger, pool->requests / pool->clients);
        if (pthread_create(&callers[i].thread, NULL, run, &callers[i]) != 0) die_because("pthread_create", "failed");
    }
    for (size_t i = 0; i < pool->clients; i++) {
        pthread_join(callers[i].thread, NULL);
        ledger_add(&all, &callers[i].ledger);
    }
    ledger_report(&all);
}
