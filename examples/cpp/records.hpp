// Records of numbered requests, from and to bytes.
#pragma once

#include <cstdint>
#include <variant>

#include "link.hpp"

namespace towpath {

constexpr auto CLIENT_HEADER = "TWPC02", WORKER_HEADER = "TWPW02";

enum Flags : uint8_t { SEVERAL = 1, ATTACHED = 2, PARTIAL = 4, VOLATILE = 8, RESENT = 16 };

using Body = std::vector<std::string>; // its frames

struct Malformed : std::runtime_error {
    explicit Malformed(const std::string &why) : std::runtime_error("a message is malformed: " + why) {}
};

// ---- from a broker

struct Welcome {
    uint64_t epoch;
    uint32_t requests;
    uint64_t bytes;
    bool journal;
};
struct Reply {
    uint64_t number;
    uint16_t status;
    std::optional<uint32_t> part; // none is the reply's end
    Body body;
};
struct Accepted {
    uint64_t first;
    uint32_t count;
};
struct Refused {
    uint64_t number;
    uint16_t status;
    uint32_t millis; // until it may be sent again; 0: never
    std::string reason;
};
struct WorkerWelcome {
    uint64_t epoch;
};
struct Request {
    std::string token;
    uint16_t attempt;
    uint32_t millis; // that are left
    Body body;
};
struct Cancel {
    std::string token;
};
struct Leave {};
struct Identity {
    std::string token, id;
};

using Record = std::variant<Welcome, Reply, Accepted, Refused, WorkerWelcome, Request, Cancel, Leave, Identity>;

// The records of a message to a client or to a worker; throws Malformed.
std::vector<Record> decode(const Message &message, const std::string &header);

// All frames of a body.
std::string join(const Body &body);

// ---- to a broker

struct Outgoing {
    std::string record;
    std::optional<std::string> attachment;
};

// Begins a client's connection: numbers below the first are settled.
Outgoing hello(const std::string &client, uint64_t first);
// A ttl of 0 ms is the broker's.
Outgoing request(uint64_t number, const std::string &service, uint32_t ttl, uint8_t flags, const Body &body);
// Lets the broker forget the outcomes of so many numbers.
Outgoing confirm(uint64_t first, uint32_t count);
Outgoing cancel(uint64_t number);
// Begins a worker's connection: it takes as many requests at a time as its credit.
Outgoing ready(uint32_t credit, const std::string &service);
// A part that isn't the last has a number.
Outgoing reply(const std::string &token, uint16_t status, std::optional<uint32_t> part, const Body &body);
Outgoing credit(uint32_t credit);
Outgoing leaving();
// Gives a request back that the worker can't begin.
Outgoing give_back(const std::string &token, const std::string &reason);

// Sends records, many to a message.
class Blocks {
public:
    Blocks(Link &link, std::string header) : link(link), header(std::move(header)) {}
    void add(const Outgoing &record);
    void flush();

private:
    Link &link;
    std::string header, block;
};

} // namespace towpath
