/* Whole messages on libzmq sockets: all frames of one at once. */
#ifndef ZMQ_FRAMES_H
#define ZMQ_FRAMES_H

#include "mdp.h"

#include <zmq.h>

enum { FRAMES_MOST = 64 };

struct message {
    zmq_msg_t frames[FRAMES_MOST];
    size_t count;
};

_Noreturn void die_zmq(const char *what);

/* A socket without limits on its queues, so that nothing is dropped or blocks; what isn't sent at the end is forgotten. */
void *open_socket(void *context, int type);
/* Binds and returns the port, if the endpoint has one. */
int bind_socket(void *socket, const char *endpoint);

/* False: nothing there (with ZMQ_DONTWAIT), or nothing within the socket's time limit. A message of more frames than
 * FRAMES_MOST is dropped and received as one without frames. */
bool receive_message(void *socket, struct message *message, int flags);
void close_message(struct message *message);
/* Sends the frames from `first` on and forgets them. */
void forward_frames(void *socket, struct message *message, size_t first);
/* Sends copies of small frames; `more`: the message isn't at its end. */
void send_frames(void *socket, const struct frame *frames, size_t count, bool more);
/* Points at all frames of a message. */
size_t view_message(struct message *message, struct frame *to);

#endif
