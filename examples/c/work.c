// work ENDPOINT SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] is a worker that takes ten requests at a time and replies in capitals.
// Requests that it has when it ends go to another worker.
#include "towpath.h"

#include <ctype.h>

#define CREDIT 10 // requests that the broker may give at a time

static void handle(uint8_t *body, size_t size) {
    for (size_t n = 0; n < size; n++) body[n] = toupper(body[n]);
}

// Replies to what the records ask for; false if the connection is lost.
static bool reply(link_to *link, reader *records, buffer *replies) {
    static buffer body;
    record record;
    int found;
    while ((found = next_record(records, &record)) > 0) {
        if (record.kind != WORKER_REQUEST) continue;
        body.size = 0;
        put_body(&body, &record);
        handle(body.data, body.size);
        bool attached = put_reply(replies, record.token, 200, NULL, 0, body.data, body.size);
        if (attached && !send_block(link, WORKER_HEADER, replies, body.data, body.size)) return false;
    }
    if (found < 0) die("%s: a message is malformed", link->endpoint);
    return send_block(link, WORKER_HEADER, replies, NULL, 0);
}

static bool session(link_to *link, void *service) {
    static buffer block;
    block.size = 0;
    put_ready(&block, CREDIT, service);
    if (!send_block(link, WORKER_HEADER, &block, NULL, 0)) return false;
    for (bool connected = true; connected;) {
        message message;
        enum received received = receive(link, -1, &message);
        if (received == LOST) return false;
        if (received == TIMEOUT) continue;
        reader records;
        if (!read_message(&message, WORKER_HEADER, &records)) die("%s is no broker of numbered requests", link->endpoint);
        connected = reply(link, &records, &block);
        close_message(&message);
    }
    return false;
}

int main(int count, char **arguments) {
    if (count < 3) die("usage: work ENDPOINT SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE]");
    keys keys = read_keys(count - 3, arguments + 3);
    keep(arguments[1], &keys, session, arguments[2]);
}
