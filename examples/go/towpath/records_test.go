package towpath

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestVectors checks the records against testing/vectors/numbered.txt: lines of KIND BLOCK ATTACHED = WHAT IT SAYS.
func TestVectors(t *testing.T) {
	file, err := os.ReadFile("../../../testing/vectors/numbered.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(file), "\n"), "\n")
	if len(lines) < 100 {
		t.Fatalf("there are only %d vectors", len(lines))
	}
	for _, line := range lines {
		message, says, _ := strings.Cut(line, " = ")
		words := strings.Split(message, " ")
		frames := [][]byte{unhex(words[1])}
		if words[2] != "-" {
			frames = append(frames, unhex(words[2]))
		}
		switch words[0] {
		case "to-client":
			expect(t, line, decoded(frames, ClientHeader), says)
		case "to-worker":
			expect(t, line, decoded(frames, WorkerHeader), says)
		default:
			record, attachment := made(strings.Split(says, " "))
			made := [][]byte{record}
			if attachment != nil {
				made = append(made, attachment)
			}
			expect(t, line, fmt.Sprintf("%x", made), fmt.Sprintf("%x", frames))
		}
	}
}

func expect(t *testing.T, line, got, wanted string) {
	if got != wanted {
		t.Errorf("%s: %s", line, got)
	}
}

// unhex reads hex, or a byte and how many of it there are.
func unhex(text string) []byte {
	text, count, repeated := strings.Cut(strings.TrimPrefix(text, "-"), "*")
	data, _ := hex.DecodeString(text)
	if repeated {
		data = bytes.Repeat(data, number(count))
	}
	return data
}

func number(text string) int {
	value, _ := strconv.Atoi(text)
	return value
}

func shown(body [][]byte) string {
	var frames []string
	for _, frame := range body {
		if len(frame) > 100 && bytes.Count(frame, frame[:1]) == len(frame) {
			frames = append(frames, fmt.Sprintf("%x*%d", frame[:1], len(frame)))
		} else {
			frames = append(frames, hex.EncodeToString(frame))
		}
	}
	return strings.Join(frames, ",")
}

func decoded(frames [][]byte, header string) string {
	records, err := Decode(append([][]byte{[]byte(header)}, frames...), header)
	if err != nil {
		return "malformed"
	}
	var said []string
	for _, r := range records {
		part, journal := "-", 0
		if r.HasPart {
			part = strconv.Itoa(int(r.Part))
		}
		if r.Journal {
			journal = 1
		}
		said = append(said, map[byte]string{
			Welcome:       fmt.Sprintf("welcome %d %d %d %d", r.Number, r.Count, r.Bytes, journal),
			Reply:         fmt.Sprintf("reply %d %d %s %s", r.Number, r.Status, part, shown(r.Body)),
			Accepted:      fmt.Sprintf("accepted %d %d", r.Number, r.Count),
			Refused:       fmt.Sprintf("refused %d %d %d %x", r.Number, r.Status, r.Millis, r.Reason),
			WorkerWelcome: fmt.Sprintf("welcome %d", r.Number),
			WorkerRequest: fmt.Sprintf("request %x %d %d %s", r.Token, r.Attempt, r.Millis, shown(r.Body)),
			WorkerCancel:  fmt.Sprintf("cancel %x", r.Token),
			Leave:         "leave",
			Identity:      fmt.Sprintf("identity %x %x", r.Token, r.ID),
		}[r.Kind])
	}
	return strings.Join(said, "; ")
}

func body(text string) (frames [][]byte) {
	for _, frame := range strings.Split(text, ",") {
		frames = append(frames, unhex(frame))
	}
	return frames
}

func made(words []string) (record, attachment []byte) {
	switch words[0] {
	case "hello":
		return Hello(unhex(words[1]), uint64(number(words[2]))), nil
	case "request":
		var flags byte
		if words[3] == "1" {
			flags |= Volatile
		}
		if words[4] == "1" {
			flags |= Resent
		}
		return Request(uint64(number(words[1])), string(unhex(words[5])), uint32(number(words[2])), flags, body(words[6])...)
	case "confirm":
		return Confirm(uint64(number(words[1])), uint32(number(words[2]))), nil
	case "cancel":
		return Cancel(uint64(number(words[1]))), nil
	case "ready":
		return Ready(uint32(number(words[1])), string(unhex(words[2]))), nil
	case "reply":
		var part *uint32
		if words[3] != "-" {
			value := uint32(number(words[3]))
			part = &value
		}
		return WorkerReply(unhex(words[1]), uint16(number(words[2])), part, body(words[4])...)
	case "credit":
		return Credit(uint32(number(words[1]))), nil
	case "leaving":
		return Leaving(), nil
	case "return":
		return Return(unhex(words[1]), string(unhex(words[2]))), nil
	}
	return nil, nil
}
