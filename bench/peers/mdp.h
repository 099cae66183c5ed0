/* The frames of Majordomo, in the shapes in which they are met, for clients and workers: what comes before a body, and how
 * to understand what arrives. The `plain` dialect has no frames but the body: for a proxy without a broker's protocol. */
#ifndef MDP_H
#define MDP_H

#include <stdbool.h>
#include <stddef.h>

struct frame {
    const void *data;
    size_t size;
};

struct dialect {
    const char *name;
    bool delimiter;              /* an empty frame leads each message */
    char request;                /* the command that follows a client's header; 0: none does */
    const char *client, *worker; /* headers; NULL: plain */
    char final, heartbeat, disconnect;
    char reply; /* to a client: of its only or last part */
};

enum mdp_command { MDP_READY = 1, MDP_REQUEST = 2, MDP_HEARTBEAT, MDP_DISCONNECT };

/* More frames than any head has. */
enum { HEAD_FRAMES_MOST = 8, SERVICE_MOST = 255 };

/* One of plain, 0.1, 0.2 and majortomo; anything else ends the program. */
const struct dialect *dialect_named(const char *name);

/* Fill in the frames before a body and return how many there are. */
size_t mdp_request_head(const struct dialect *dialect, const char *service, struct frame *to);
size_t mdp_reply_head(const struct dialect *dialect, struct frame address, struct frame *to);
/* A whole message: READY with its service, HEARTBEAT or DISCONNECT. */
size_t mdp_control(const struct dialect *dialect, enum mdp_command command, const char *service, struct frame *to);

/* What a client got: where its body begins. Anything but a last or only reply ends the program. */
size_t mdp_reply_body(const struct dialect *dialect, const struct frame *frames, size_t count);
/* What a worker got. For a request, where the client's address is; an empty frame and the body follow it. */
enum mdp_command mdp_understand(const struct dialect *dialect, const struct frame *frames, size_t count, size_t *address);

/* The name of the n-th of some services: the only one's is just its name. Writes at most SERVICE_MOST bytes and a NUL. */
void service_name(char *to, const char *name, size_t n, size_t services);

#endif
