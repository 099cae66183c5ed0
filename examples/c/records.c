#include "towpath.h"

#include <stdlib.h>
#include <string.h>

#define BODY_FRAMES_MAX 1000
#define ATTACH_BYTES 4096 // larger bodies are a frame of their own
#define NAME_BYTES_MAX 255

// ---- reading

bool read_message(message *message, const char *header, reader *reader) {
    if (message->count < 2 || message->count > 3 || !is_word(message, 0, header)) return false;
    size_t size;
    *reader = (struct reader){0};
    reader->at = (const uint8_t *)bytes_of(message, 1, &size);
    reader->end = reader->at + size;
    reader->for_worker = strcmp(header, WORKER_HEADER) == 0;
    if (message->count == 3) reader->attached = (const uint8_t *)bytes_of(message, 2, &reader->attached_size);
    return true;
}

// The next bytes, or NULL if there are too few, from then on.
static const uint8_t *take(reader *reader, size_t size) {
    if (!reader->at || (size_t)(reader->end - reader->at) < size) return reader->at = NULL;
    reader->at += size;
    return reader->at - size;
}

static uint64_t take_number(reader *reader, size_t size) {
    uint64_t number = 0;
    const uint8_t *bytes = take(reader, size);
    for (size_t n = 0; bytes && n < size; n++) number = number << 8 | bytes[n];
    return number;
}

int next_frame(const uint8_t **rest, const uint8_t *end, const uint8_t **frame, size_t *size) {
    if (*rest == end) return 0;
    reader reader = {.at = *rest, .end = end};
    *size = take_number(&reader, 4);
    *frame = take(&reader, *size);
    *rest = reader.at;
    return reader.at ? 1 : -1;
}

static bool is_list(const uint8_t *body, const uint8_t *end) {
    const uint8_t *frame;
    size_t size;
    int count = 0, found;
    while ((found = next_frame(&body, end, &frame, &size)) > 0) count++;
    return found == 0 && count > 0 && count <= BODY_FRAMES_MAX;
}

static bool take_body(reader *reader, record *record, uint8_t known) {
    record->body_size = take_number(reader, 4);
    record->body = take(reader, record->body_size);
    if (!reader->at || record->flags & ~known) return false;
    if (record->flags & ATTACHED) {
        if (record->body_size || !reader->attached || reader->at != reader->end) return false;
        record->body = reader->attached, record->body_size = reader->attached_size;
        reader->attached = NULL;
    }
    return !(record->flags & SEVERAL) || is_list(record->body, record->body + record->body_size);
}

int next_record(reader *reader, record *record) {
    if (reader->at == reader->end) return reader->attached ? -1 : 0;
    *record = (struct record){.kind = take_number(reader, 1)};
    // Records for workers have the highest bit.
    if ((record->kind >= 0x80) != reader->for_worker) return -1;
    switch (record->kind) {
    case WELCOME:
        record->number = take_number(reader, 8);
        record->count = take_number(reader, 4);
        record->bytes = take_number(reader, 8);
        record->journal = take_number(reader, 1) & 1;
        break;
    case REPLY:
        record->flags = take_number(reader, 1);
        record->number = take_number(reader, 8);
        record->status = take_number(reader, 2);
        if (record->flags & PARTIAL) record->part = take_number(reader, 4);
        if (!take_body(reader, record, SEVERAL | ATTACHED | PARTIAL)) return -1;
        break;
    case ACCEPTED:
        record->number = take_number(reader, 8);
        record->count = take_number(reader, 4);
        break;
    case REFUSED:
        record->number = take_number(reader, 8);
        record->status = take_number(reader, 2);
        record->millis = take_number(reader, 4);
        record->body_size = take_number(reader, 1);
        record->body = take(reader, record->body_size);
        break;
    case WORKER_WELCOME:
        record->number = take_number(reader, 8);
        break;
    case WORKER_REQUEST:
        record->flags = take_number(reader, 1);
        record->token = take(reader, TOKEN_BYTES);
        record->attempt = take_number(reader, 2);
        record->millis = take_number(reader, 4);
        if (!take_body(reader, record, SEVERAL | ATTACHED)) return -1;
        break;
    case WORKER_CANCEL:
        record->token = take(reader, TOKEN_BYTES);
        break;
    case IDENTITY:
        record->token = take(reader, TOKEN_BYTES);
        record->id = take(reader, TOKEN_BYTES);
        break;
    case LEAVE:
        break;
    default:
        return -1;
    }
    return reader->at ? 1 : -1;
}

// ---- writing

void put(buffer *buffer, const void *data, size_t size) {
    if (buffer->size + size > buffer->capacity) {
        buffer->capacity = 2 * (buffer->size + size);
        buffer->data = realloc(buffer->data, buffer->capacity);
        if (!buffer->data) die("no memory");
    }
    if (size) memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
}

void put_body(buffer *buffer, const record *record) {
    if (!(record->flags & SEVERAL)) {
        put(buffer, record->body, record->body_size);
        return;
    }
    const uint8_t *rest = record->body, *frame;
    size_t size;
    while (next_frame(&rest, record->body + record->body_size, &frame, &size) > 0) put(buffer, frame, size);
}

static void put_number(buffer *block, size_t size, uint64_t number) {
    while (size-- > 0) put(block, &(uint8_t){number >> 8 * size}, 1);
}

static void put_name(buffer *block, const char *name) {
    size_t size = strnlen(name, NAME_BYTES_MAX);
    put_number(block, 1, size);
    put(block, name, size);
}

static bool is_attached(uint8_t *flags, size_t size) {
    if (size <= ATTACH_BYTES || *flags & SEVERAL) return false;
    *flags |= ATTACHED;
    return true;
}

static void put_end(buffer *block, bool attached, const void *body, size_t size) {
    put_number(block, 4, attached ? 0 : size);
    if (!attached) put(block, body, size);
}

void put_hello(buffer *block, const uint8_t *client, uint64_t first) {
    put_number(block, 1, 0x01);
    put(block, client, TOKEN_BYTES);
    put_number(block, 8, first);
}

bool put_request(buffer *block, uint64_t number, const char *service, uint32_t ttl, uint8_t flags, const void *body, size_t size) {
    bool attached = is_attached(&flags, size);
    put_number(block, 2, 0x0200 | flags);
    put_number(block, 8, number);
    put_number(block, 4, ttl);
    put_name(block, service);
    put_end(block, attached, body, size);
    return attached;
}

void put_confirm(buffer *block, uint64_t first, uint32_t count) {
    put_number(block, 1, 0x03);
    put_number(block, 8, first);
    put_number(block, 4, count);
}

void put_cancel(buffer *block, uint64_t number) {
    put_number(block, 1, 0x04);
    put_number(block, 8, number);
}

void put_ready(buffer *block, uint32_t credit, const char *service) {
    put_number(block, 1, 0x81);
    put_number(block, 4, credit);
    put_name(block, service);
}

bool put_reply(buffer *block, const uint8_t *token, uint16_t status, const uint32_t *part, uint8_t flags, const void *body, size_t size) {
    bool attached = is_attached(&flags, size);
    put_number(block, 2, 0x8200 | flags | (part ? PARTIAL : 0));
    put(block, token, TOKEN_BYTES);
    put_number(block, 2, status);
    if (part) put_number(block, 4, *part);
    put_end(block, attached, body, size);
    return attached;
}

void put_credit(buffer *block, uint32_t credit) {
    put_number(block, 1, 0x83);
    put_number(block, 4, credit);
}

void put_leaving(buffer *block) { put_number(block, 1, 0x84); }

void put_return(buffer *block, const uint8_t *token, const char *reason) {
    put_number(block, 1, 0x85);
    put(block, token, TOKEN_BYTES);
    put_name(block, reason);
}

bool send_block(link_to *link, const char *header, buffer *block, const void *attached, size_t size) {
    if (block->size == 0) return true;
    const void *frames[] = {header, block->data, attached};
    const size_t sizes[] = {strlen(header), block->size, size};
    block->size = 0;
    return send_frames(link, attached ? 3 : 2, frames, sizes);
}
