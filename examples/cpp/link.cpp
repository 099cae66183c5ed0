#include "link.hpp"

#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>

namespace towpath {

using namespace std::chrono_literals;

constexpr int64_t MESSAGE_BYTES_MAX = 64 << 20;
constexpr int HEARTBEAT = 2000; // ms
constexpr int SILENCE = 8000;   // after which a server that answers no heartbeat counts as lost
constexpr auto PAUSE = 300ms;   // between connections
constexpr int LINGER = 1000;
constexpr auto EVENTS = "inproc://events"; // where the dealer says what becomes of its connection, within its context

// The value of a line such as `public-key = "..."`.
static std::string field(const std::string &path, const std::string &name) {
    std::ifstream file(path);
    std::string word, equals, value;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        if (words >> word >> equals >> value && word == name && equals == "=" && value.size() == 42) return value.substr(1, 40);
    }
    throw std::runtime_error(path + " has no " + name);
}

std::optional<Keys> read_keys(const Arguments &arguments, size_t first) {
    if (arguments.size() == first) return {};
    if (arguments.size() != first + 2)
        throw std::runtime_error("CURVE needs two files: the client's secret key and the server's public key");
    const auto &own = arguments[first];
    return Keys{field(own, "public-key"), field(own, "secret-key"), field(arguments[first + 1], "public-key")};
}

Link::Link(std::string to, const std::optional<Keys> &keys)
    : endpoint(std::move(to)), dealer(context, zmq::socket_type::dealer), monitor(context, zmq::socket_type::pair) {
    dealer.set(zmq::sockopt::sndhwm, 0); // how much is in flight is up to the programs
    dealer.set(zmq::sockopt::linger, 0); // of a connection that is lost
    dealer.set(zmq::sockopt::maxmsgsize, MESSAGE_BYTES_MAX);
    dealer.set(zmq::sockopt::reconnect_ivl, -1);
    dealer.set(zmq::sockopt::heartbeat_ivl, HEARTBEAT);
    dealer.set(zmq::sockopt::heartbeat_timeout, SILENCE);
    if (keys) {
        dealer.set(zmq::sockopt::curve_serverkey, keys->server);
        dealer.set(zmq::sockopt::curve_publickey, keys->own);
        dealer.set(zmq::sockopt::curve_secretkey, keys->secret);
    }
    const int events =
        ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL;
    if (zmq_socket_monitor(dealer.handle(), EVENTS, events) != 0) throw zmq::error_t();
    monitor.connect(EVENTS);
    dealer.connect(endpoint);
}

Link::~Link() {
    // libzmq's thread would wait for ever for somebody to take its events.
    zmq_socket_monitor(dealer.handle(), nullptr, 0);
}

void Link::send(const Message &frames) {
    for (size_t n = 0; n < frames.size(); n++) {
        const auto more = n + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
        // Without a limit to the queue there is only no place for it when there is no connection.
        if (!dealer.send(zmq::buffer(frames[n]), zmq::send_flags::dontwait | more)) throw Lost();
    }
}

std::optional<Message> Link::receive(std::chrono::milliseconds timeout) {
    zmq::pollitem_t items[] = {{dealer.handle(), 0, ZMQ_POLLIN, 0}, {monitor.handle(), 0, ZMQ_POLLIN, 0}};
    if (zmq::poll(items, 2, timeout) == 0) return {};
    // What came before the end counts, so the dealer goes first.
    if (items[0].revents & ZMQ_POLLIN) {
        Message message;
        zmq::message_t frame;
        do {
            (void)dealer.recv(frame);
            message.push_back(frame.to_string());
        } while (frame.more());
        return message;
    }
    zmq::message_t event, address;
    (void)monitor.recv(event);
    (void)monitor.recv(address);
    uint16_t kind;
    memcpy(&kind, event.data(), sizeof kind);
    if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
        throw std::runtime_error(endpoint + " refuses us: the client's key, or the server's, isn't the right one");
    if (kind == ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL)
        throw std::runtime_error(endpoint + " refuses us: only one side has keys, or it isn't Towpath");
    throw Lost();
}

Message Link::receive() {
    for (;;)
        if (auto message = receive(-1ms)) return *message;
}

void Link::linger() { dealer.set(zmq::sockopt::linger, LINGER); }

void keep(const std::vector<std::string> &endpoints, const std::optional<Keys> &keys, const std::function<void(Link &)> &session) {
    for (size_t turn = 0;; turn++) {
        const auto &endpoint = endpoints[turn % endpoints.size()];
        try {
            Link link(endpoint, keys);
            session(link);
            return link.linger();
        } catch (const Lost &lost) {
            std::cerr << endpoint << ": " << lost.what() << std::endl;
        }
        std::this_thread::sleep_for(PAUSE);
    }
}

int run(int count, char **arguments, size_t needed, const std::string &usage, const std::function<void(const Arguments &)> &program) {
    const Arguments words(arguments + 1, arguments + count);
    try {
        if (words.size() < needed) throw std::runtime_error("usage: " + usage + " [SECRET-KEY-FILE SERVER-KEY-FILE]");
        program(words);
        return 0;
    } catch (const std::exception &why) {
        std::cerr << why.what() << std::endl;
        return 1;
    }
}

} // namespace towpath
