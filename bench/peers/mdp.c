#include "mdp.h"
#include "peer.h"

#include <stdio.h>
#include <string.h>

static const struct dialect known[] = {
    {.name = "plain"},
    {.name = "0.1", .delimiter = true, .client = "MDPC01", .worker = "MDPW01", .final = 3, .heartbeat = 4, .disconnect = 5},
    {.name = "0.2", .request = 1, .client = "MDPC02", .worker = "MDPW02", .final = 4, .heartbeat = 5, .disconnect = 6,
     .reply = 3},
    {.name = "majortomo", .delimiter = true, .request = 2, .client = "MDPC02", .worker = "MDPW02", .final = 4,
     .heartbeat = 5, .disconnect = 6, .reply = 4},
};

static const char commands[] = {0, 1, 2, 3, 4, 5, 6};

const struct dialect *dialect_named(const char *name) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, name) == 0) return &known[i];
    die_because(name, "no such dialect");
}

static struct frame text(const char *words) { return (struct frame){words, strlen(words)}; }

static struct frame command_frame(char command) { return (struct frame){&commands[(size_t)command], 1}; }

static bool is(const struct frame *frame, const char *words) {
    return frame->size == strlen(words) && memcmp(frame->data, words, frame->size) == 0;
}

size_t mdp_request_head(const struct dialect *dialect, const char *service, struct frame *to) {
    size_t count = 0;
    if (dialect->client == NULL) return count;
    if (dialect->delimiter) to[count++] = (struct frame){"", 0};
    to[count++] = text(dialect->client);
    if (dialect->request != 0) to[count++] = command_frame(dialect->request);
    to[count++] = text(service);
    return count;
}

static size_t worker_head(const struct dialect *dialect, char command, struct frame *to) {
    size_t count = 0;
    if (dialect->delimiter) to[count++] = (struct frame){"", 0};
    to[count++] = text(dialect->worker);
    to[count++] = command_frame(command);
    return count;
}

size_t mdp_reply_head(const struct dialect *dialect, struct frame address, struct frame *to) {
    size_t count = worker_head(dialect, dialect->final, to);
    to[count++] = address;
    to[count++] = (struct frame){"", 0};
    return count;
}

size_t mdp_control(const struct dialect *dialect, enum mdp_command command, const char *service, struct frame *to) {
    char byte = command == MDP_READY ? MDP_READY : command == MDP_HEARTBEAT ? dialect->heartbeat : dialect->disconnect;
    size_t count = worker_head(dialect, byte, to);
    if (command == MDP_READY) to[count++] = text(service);
    return count;
}

size_t mdp_reply_body(const struct dialect *dialect, const struct frame *frames, size_t count) {
    if (dialect->client == NULL) return 0;
    size_t at = dialect->delimiter ? 1 : 0;
    /* The header, then the service, a command, or both. */
    size_t body = at + (dialect->request != 0 && !dialect->delimiter ? 3 : 2);
    if (count <= body || (at == 1 && frames[0].size != 0) || !is(&frames[at], dialect->client))
        die_because("broker", "not a reply in this dialect");
    if (dialect->request != 0 && (frames[at + 1].size != 1 || *(const char *)frames[at + 1].data != dialect->reply))
        die_because("broker", "not a final reply");
    return body;
}

enum mdp_command mdp_understand(const struct dialect *dialect, const struct frame *frames, size_t count, size_t *address) {
    size_t at = dialect->delimiter ? 1 : 0;
    if (count < at + 2 || (at == 1 && frames[0].size != 0) || !is(&frames[at], dialect->worker) || frames[at + 1].size != 1)
        die_because("broker", "not a command in this dialect");
    char command = *(const char *)frames[at + 1].data;
    if (command == dialect->heartbeat) return MDP_HEARTBEAT;
    if (command == dialect->disconnect) return MDP_DISCONNECT;
    if (command != MDP_REQUEST || count < at + 5 || frames[at + 3].size != 0) die_because("broker", "not a command for a worker");
    *address = at + 2;
    return MDP_REQUEST;
}

void service_name(char *to, const char *name, size_t n, size_t services) {
    int size = services == 1 ? snprintf(to, SERVICE_MOST + 1, "%s", name) : snprintf(to, SERVICE_MOST + 1, "%s%zu", name, n);
    if (size < 0 || size > SERVICE_MOST) die_because("service", "its name is too long");
}
