// What the four programs share: connections to Towpath's servers, and the records of numbered requests.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

// Ends the program with a reason.
_Noreturn void die(const char *format, ...);

// ---- connections

#define FRAMES_MAX 6 // of the messages that are received here

typedef struct keys {
    bool used;
    char public_key[41], secret_key[41], server_key[41];
} keys;

typedef struct link_to {
    void *context, *dealer, *monitor;
    const char *endpoint;
} link_to;

typedef struct message {
    int count;
    zmq_msg_t frames[FRAMES_MAX];
} message;

typedef struct buffer {
    uint8_t *data;
    size_t size, capacity;
} buffer;

// Keys of CURVE from two files of `tow key`: the client's secret key and the server's public key. No files are no keys.
keys read_keys(int count, char **files);

// Queues a message of two or three frames, of which the last may be NULL, or of words; false if the connection is lost.
bool send_frames(link_to *link, int count, const void *const *frames, const size_t *sizes);
bool send_words(link_to *link, int count, const char *const *words);

enum received { LOST = -1, TIMEOUT = 0, MESSAGE = 1 };

// Waits for a message, which must be closed; a timeout in ms below 0 is none. Ends the program if the server refuses us.
enum received receive(link_to *link, long timeout, message *message);
void close_message(message *message);
const char *bytes_of(message *message, int frame, size_t *size);

// Whether a frame is this word.
bool is_word(message *message, int frame, const char *word);

// A number in decimal text.
int64_t number_of(message *message, int frame);

// Runs a session over a connection, and again over the next until it returns true: to the next endpoint, in turn. The
// endpoints are changed.
void keep(char *endpoints, const keys *keys, bool (*session)(link_to *link, void *state), void *state);

// ---- records

#define CLIENT_HEADER "TWPC02"
#define WORKER_HEADER "TWPW02"
#define TOKEN_BYTES 16

enum kind {
    WELCOME = 0x41,
    REPLY = 0x42,
    ACCEPTED = 0x43,
    REFUSED = 0x44,
    WORKER_WELCOME = 0xC1,
    WORKER_REQUEST = 0xC2,
    WORKER_CANCEL = 0xC3,
    LEAVE = 0xC4,
    IDENTITY = 0xC5,
};

enum flags { SEVERAL = 1, ATTACHED = 2, PARTIAL = 4, VOLATILE = 8, RESENT = 16 };

// A record of a broker. Which fields count depends on its kind. Pointers lead into the message.
typedef struct record {
    uint8_t kind, flags;
    uint64_t number; // of a request; epoch of a welcome; first of those accepted
    uint32_t count;  // accepted; requests that a client may have outstanding
    uint64_t bytes;  // that a client may have outstanding
    bool journal;
    const uint8_t *token, *id;
    uint16_t status, attempt;
    uint32_t millis; // until a refused request may be sent again; that are left of a worker's request
    uint32_t part;
    const uint8_t *body; // or the reason
    size_t body_size;
} record;

typedef struct reader {
    const uint8_t *at, *end;
    const uint8_t *attached; // NULL if there is none, or it was taken
    size_t attached_size;
    bool for_worker;
} reader;

// Reads a message with this header; false if it has another.
bool read_message(message *message, const char *header, reader *reader);

// The next record: 1, or 0 at the end, or -1 if it is malformed.
int next_record(reader *reader, record *record);

// The next frame of a body that has several: 1, or 0 at the end, or -1 if it is malformed.
int next_frame(const uint8_t **rest, const uint8_t *end, const uint8_t **frame, size_t *size);

void put(buffer *buffer, const void *data, size_t size);

// Appends all frames of a body.
void put_body(buffer *buffer, const record *record);

void put_hello(buffer *block, const uint8_t *client, uint64_t first);
void put_confirm(buffer *block, uint64_t first, uint32_t count);
void put_cancel(buffer *block, uint64_t number);
void put_ready(buffer *block, uint32_t credit, const char *service);
void put_credit(buffer *block, uint32_t credit);
void put_leaving(buffer *block);
void put_return(buffer *block, const uint8_t *token, const char *reason);

// Bodies that are to be attached, since they are large, leave the block's end ATTACHED: true, and send them with it.
bool put_request(buffer *block, uint64_t number, const char *service, uint32_t ttl, uint8_t flags, const void *body, size_t size);
bool put_reply(buffer *block, const uint8_t *token, uint16_t status, const uint32_t *part, uint8_t flags, const void *body, size_t size);

// Sends a block, if it isn't empty, with an attachment, which may be NULL, and empties it; false if the connection is lost.
bool send_block(link_to *link, const char *header, buffer *block, const void *attached, size_t size);
