// vectors FILE checks the records against testing/vectors/numbered.txt: lines of KIND BLOCK ATTACHED = WHAT IT SAYS.
#include <fstream>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <utility>

#include "records.hpp"

using namespace towpath;

// Bytes of hex, or of a byte and how many of it there are.
static std::string unhex(const std::string &text) {
    if (text == "-") return "";
    if (const auto star = text.find('*'); star != std::string::npos)
        return std::string(std::stoul(text.substr(star + 1)), char(std::stoi(text.substr(0, 2), nullptr, 16)));
    std::string bytes;
    for (size_t n = 0; n < text.size(); n += 2) bytes += char(std::stoi(text.substr(n, 2), nullptr, 16));
    return bytes;
}

static std::string hexed(const std::string &bytes) {
    std::ostringstream hex;
    const bool same = bytes.size() > 100 && bytes.find_first_not_of(bytes[0]) == std::string::npos;
    for (const unsigned char byte : same ? bytes.substr(0, 1) : bytes) hex << std::hex << std::setw(2) << std::setfill('0') << int(byte);
    if (same) hex << "*" << std::dec << bytes.size();
    return hex.str();
}

static std::vector<std::string> split(const std::string &text, char separator) {
    std::vector<std::string> words(1);
    for (const char letter : text) {
        if (letter == separator) words.emplace_back();
        else words.back() += letter;
    }
    return words;
}

static std::string shown(const Body &frames) {
    std::string all;
    for (const auto &frame : frames) all += (&frame == &frames[0] ? "" : ",") + hexed(frame);
    return all;
}

struct Says {
    std::ostringstream out;
    void operator()(const Welcome &r) { out << "welcome " << r.epoch << " " << r.requests << " " << r.bytes << " " << r.journal; }
    void operator()(const Reply &r) {
        out << "reply " << r.number << " " << r.status << " " << (r.part ? std::to_string(*r.part) : "-") << " " << shown(r.body);
    }
    void operator()(const Accepted &r) { out << "accepted " << r.first << " " << r.count; }
    void operator()(const Refused &r) { out << "refused " << r.number << " " << r.status << " " << r.millis << " " << hexed(r.reason); }
    void operator()(const WorkerWelcome &r) { out << "welcome " << r.epoch; }
    void operator()(const Request &r) { out << "request " << hexed(r.token) << " " << r.attempt << " " << r.millis << " " << shown(r.body); }
    void operator()(const Cancel &r) { out << "cancel " << hexed(r.token); }
    void operator()(const Leave &) { out << "leave"; }
    void operator()(const Identity &r) { out << "identity " << hexed(r.token) << " " << hexed(r.id); }
};

static std::string decoded(Message frames, const std::string &header) {
    frames.insert(frames.begin(), header);
    try {
        Says says;
        bool first = true;
        for (const auto &record : decode(frames, header)) {
            if (!std::exchange(first, false)) says.out << "; ";
            std::visit(says, record);
        }
        return says.out.str();
    } catch (const Malformed &) {
        return "malformed";
    }
}

static Body body(const std::string &text) {
    Body frames;
    for (const auto &frame : split(text, ',')) frames.push_back(unhex(frame));
    return frames;
}

static Outgoing made(const std::string &says) {
    const auto w = split(says, ' ');
    const auto number = [&](size_t n) { return std::stoull(w[n]); };
    if (w[0] == "hello") return hello(unhex(w[1]), number(2));
    if (w[0] == "confirm") return confirm(number(1), number(2));
    if (w[0] == "cancel") return cancel(number(1));
    if (w[0] == "ready") return ready(number(1), unhex(w[2]));
    if (w[0] == "credit") return credit(number(1));
    if (w[0] == "leaving") return leaving();
    if (w[0] == "return") return give_back(unhex(w[1]), unhex(w[2]));
    if (w[0] == "request")
        return request(number(1), unhex(w[5]), number(2), (w[3] == "1" ? VOLATILE : 0) | (w[4] == "1" ? RESENT : 0), body(w[6]));
    if (w[0] == "reply") return reply(unhex(w[1]), number(2), w[3] == "-" ? std::nullopt : std::optional<uint32_t>(number(3)), body(w[4]));
    throw std::runtime_error(says + " is no vector");
}

int main(int count, char **arguments) {
    std::ifstream file(count == 2 ? arguments[1] : "");
    int vectors = 0, wrong = 0;
    for (std::string line; std::getline(file, line); vectors++) {
        const auto equals = line.find(" = ");
        const auto words = split(line.substr(0, equals), ' ');
        const auto says = line.substr(equals + 3);
        Message frames{unhex(words[1])};
        if (words[2] != "-") frames.push_back(unhex(words[2]));
        std::string got, expected = says;
        if (words[0] == "to-client" || words[0] == "to-worker") {
            got = decoded(frames, words[0] == "to-client" ? CLIENT_HEADER : WORKER_HEADER);
        } else {
            const auto outgoing = made(says);
            got = shown(outgoing.attachment ? Body{outgoing.record, *outgoing.attachment} : Body{outgoing.record});
            expected = shown(frames);
        }
        if (got != expected) wrong++, std::cerr << line << ": " << got << std::endl;
    }
    std::cout << vectors << " vectors, " << wrong << " wrong" << std::endl;
    return vectors > 100 && wrong == 0 ? 0 : 1;
}
